"""A clock that jumps: hours of waiting in no time, in an order that is always the same.

For benchmarks and tests of schedules. Work for the loop's threads is done at once, in no time; the clock overtakes
sockets and threads of others.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple, Unpack

__all__ = ["run_virtual"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


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
        found = super().select(0)
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

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - handed to whoever awaits it, as a thread's would be
            done.set_exception(error)
        return done
