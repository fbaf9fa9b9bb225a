"""A deadline that costs next to nothing where it is met, as nearly all are."""

from __future__ import annotations

import asyncio
import math
from types import TracebackType
from typing import Self

__all__ = ["Alarm"]


class Alarm:
    """Deadlines of one thing after another, each as `asyncio.timeout` has it, on one timer of the event loop.

    A thousand episodes at once would make, sort and cancel a timer each for every call of the policy and of a tool.
    Here a timer that is due too early is left where it is: when it rings, it is set to what is due then.
    """

    __slots__ = ("_cancelling", "_limit_s", "_loop", "_task", "_timer", "_until", "rang")

    def __init__(self) -> None:
        self.rang = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None
        self._limit_s = self._until = 0.0
        self._cancelling = 0

    def after(self, limit_s: float | None) -> Self:
        """As a context: what is in it is cancelled after so many seconds, and raises TimeoutError; see `rang`.

        Without a limit it has all the time there is.

        Raises:
            RuntimeError: something is under way already.
        """
        if self._task is not None:
            raise RuntimeError("an alarm is for one thing at a time")
        self._limit_s = math.inf if limit_s is None else limit_s
        return self

    def __enter__(self) -> Self:
        loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        assert self._task is not None  # in a coroutine there is one
        self.rang, self._cancelling = False, self._task.cancelling()
        self._until = loop.time() + self._limit_s
        if self._timer is None or self._loop is not loop or self._timer.when() > self._until:
            self.close()
            self._set(loop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if self.rang and task is not None and task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def close(self) -> None:
        """Gives the timer back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        if self._until < math.inf:
            self._timer = loop.call_at(self._until, self._ring)

    def _ring(self) -> None:
        assert self._timer is not None
        early, self._timer = self._until > self._timer.when(), None
        if self._task is None:
            return
        if early:
            self._set(asyncio.get_running_loop())
            return
        self.rang = True
        self._task.cancel()
