"""Output kept within a bound while it streams: the head and the tail, the rest counted; and marks found in it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple

__all__ = ["CappedOutput", "Mark", "MarkedStream"]

_MARK_LENGTH = 64  # none is longer
# Compiled once, not for each nonce. What closes one that is imitated may open a true one, and so is not taken with it.
_MARK = re.compile(rb"\x01([0-9a-f]{16}) (\+|\d{1,10})(?=\x01)")


class Mark(NamedTuple):
    """Stands in a stream as `\\1NONCE WORD\\1`: the nonce is 16 hex digits, the word "+" or a number."""

    nonce: str
    word: str


class CappedOutput:
    """Keeps the first and last halves of `max_bytes`; memory is bounded whatever comes."""

    def __init__(self, max_bytes: int) -> None:
        self.total = 0
        self._half = max(1, max_bytes // 2)
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0

    def feed(self, data: bytes) -> None:
        """Takes the next bytes."""
        self.total += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail.append(data[-self._half :])
        self._tail_size += len(self._tail[-1])
        while self._tail_size - len(self._tail[0]) >= self._half:
            self._tail_size -= len(self._tail.popleft())

    @property
    def dropped(self) -> int:
        """Bytes that were left out."""
        return self.total - len(self._head) - min(self._tail_size, self._half)

    def value(self) -> bytes:
        """What was kept, the cut marked."""
        tail = b"".join(self._tail)[-self._half :]
        mark = f"\n[... {self.dropped} bytes left out ...]\n".encode() if self.dropped else b""
        return bytes(self._head) + mark + tail


class MarkedStream:
    """A stream in which marks stand between outputs.

    Args:
        read: gives some bytes, at most so many; none at the end.
    """

    def __init__(self, read: Callable[[int], Awaitable[bytes]]) -> None:
        self._read = read
        self._unread = b""

    async def until(
        self, nonces: Collection[str], output: CappedOutput, *, told: Callable[[], None] = lambda: None
    ) -> Mark | None:
        """Feeds the output with what comes before the next mark, which is returned; None at the stream's end.

        Args:
            nonces: of the marks that count; others are output.
            output: where everything else goes.
            told: called each time that it has been fed.
        """
        while True:
            for found in _MARK.finditer(self._unread):
                mark = Mark(found[1].decode(), found[2].decode())
                if mark.nonce in nonces:
                    output.feed(self._unread[: found.start()])
                    self._unread = self._unread[found.end() + 1 :]
                    return mark
            output.feed(self._unread[:-_MARK_LENGTH])
            self._unread = self._unread[-_MARK_LENGTH:]
            told()
            data = await self._read(262_144)
            if not data:
                output.feed(self._unread)
                self._unread = b""
                return None
            self._unread += data
