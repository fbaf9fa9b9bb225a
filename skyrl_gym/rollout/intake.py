"""Where requests come from: drawn one at a time, from a plain iterable or from an asynchronous stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import TypeAlias

from skyrl_gym.rollout.requests import RolloutRequest

__all__ = ["Intake", "Requests", "intake_of"]

Requests: TypeAlias = Iterable[RolloutRequest] | AsyncIterable[RolloutRequest]


def intake_of(requests: Requests, wake: Callable[[], None]) -> Intake:
    """An intake for either kind; `wake` is called when a stream has more."""
    if isinstance(requests, AsyncIterable):
        return _Stream(aiter(requests), wake)
    return Intake(iter(requests))


class Intake:
    """Requests of a plain iterable."""

    def __init__(self, requests: Iterator[RolloutRequest]) -> None:
        self._requests = requests
        self.ended = False

    def draw(self) -> RolloutRequest | None:
        """The next request; None where there is none, or none yet (see `ended`)."""
        found = next(self._requests, None)
        self.ended = found is None
        return found

    def rest(self) -> Iterator[RolloutRequest]:
        """What was never drawn. Of an endless iterable there is no end of it."""
        return self._requests

    async def aclose(self) -> None:
        """Stops whatever waits for more."""


class _Stream(Intake):
    """Requests of a stream: one is asked for ahead, never more, so the producer feels the back pressure."""

    def __init__(self, requests: AsyncIterator[RolloutRequest], wake: Callable[[], None]) -> None:
        super().__init__(iter(()))
        self._stream = requests
        self._wake = wake
        self._next: asyncio.Task[RolloutRequest | None] | None = None

    def draw(self) -> RolloutRequest | None:
        if self._next is None:
            self._next = asyncio.ensure_future(self._ask())
            self._next.add_done_callback(lambda _: self._wake())
        if not self._next.done() or self.ended:
            return None
        asked, self._next = self._next, None
        found = asked.result()
        self.ended = found is None
        return found

    async def _ask(self) -> RolloutRequest | None:
        return await anext(self._stream, None)

    async def aclose(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait({self._next})
