"""A clock that jumps: hours of waiting in no time, in an order that is always the same.

For benchmarks and tests of schedules. Whatever runs on it should wait for the loop only: the clock overtakes
threads and sockets.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["run_virtual"]

T = TypeVar("T")

THREAD_S = 5.0
"""How long, in real seconds, a thread may work while nothing else is to come."""


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine as `asyncio.run` does; `loop.time()` begins at 0 and moves on when everyone waits."""
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(work)


class _JumpingSelector(selectors.SelectSelector):
    """Waits by moving the clock instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0 if timeout is not None else THREAD_S)
        if not found and timeout is None:
            raise RuntimeError("everyone waits for something that will never come")
        self.now += max(timeout or 0.0, 0.0)
        return found


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now
