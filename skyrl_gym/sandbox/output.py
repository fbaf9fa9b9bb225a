"""Output kept within a bound while it streams: the head and the tail, the rest counted."""

from __future__ import annotations

from collections import deque

__all__ = ["CappedOutput"]


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
