"""Finds out what is stuck, and how late the event loop is, while a run goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from skyrl_gym.rollout.metrics import Stuck, Tally

__all__ = ["Watched", "stuck_among", "waiting_stack", "watch"]

_log = logging.getLogger(__name__)

BEAT_S = 0.25
SUSPICIOUS_SHARE = 0.5
LATE_S = 1.0


class Watched(Protocol):
    """What is known of an attempt from outside."""

    def in_stage(self) -> tuple[str, float, float, asyncio.Task[Any]] | None:
        """The stage, when it began on the loop's clock, its limit in seconds, and its task; None between stages."""
        ...

    def stuck(self, stage: str, seconds: float, limit_s: float, stack: tuple[str, ...]) -> Stuck:
        """That it is stuck, as a value."""
        ...


def stuck_among(attempts: Iterable[Watched], now: float) -> tuple[Stuck, ...]:
    """The attempts that have used up half of their stage's deadline."""
    found = []
    for attempt in attempts:
        if (current := attempt.in_stage()) is None:
            continue
        stage, began, limit_s, task = current
        if now - began > SUSPICIOUS_SHARE * limit_s:
            found.append(attempt.stuck(stage, now - began, limit_s, waiting_stack(task)))
    return tuple(found)


def waiting_stack(task: asyncio.Task[Any]) -> tuple[str, ...]:
    """Where a task waits: one line a coroutine, outermost first, through the tasks that it waits for.

    (`Task.get_stack` gives the outermost line alone.)
    """
    lines: list[str] = []
    current: asyncio.Task[Any] | None = task
    while current is not None:
        awaited: Any = current.get_coro()
        while awaited is not None:
            frame = _first(awaited, "cr_frame", "gi_frame", "ag_frame")
            if frame is not None:
                lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}")
            awaited = _first(awaited, "cr_await", "gi_yieldfrom", "ag_await")
        current = _waited_for(current)
    return tuple(lines)


def _waited_for(task: asyncio.Task[Any]) -> asyncio.Task[Any] | None:
    """The task that a task waits for, alone or in a `gather`; asyncio has no public name for it."""
    future = getattr(task, "_fut_waiter", None)
    tasks = getattr(future, "_children", [future])
    return next((found for found in tasks if isinstance(found, asyncio.Task) and not found.done()), None)


def _first(thing: Any, *names: str) -> Any:
    return next((value for name in names if (value := getattr(thing, name, None)) is not None), None)


async def watch(
    attempts: Callable[[], Iterable[Watched]], tally: Tally, *, report: Callable[[], None], every_s: float
) -> None:
    """Measures the loop's lag, warns once of each stage that is stuck, and reports now and then, until cancelled."""
    loop = asyncio.get_running_loop()
    told: set[tuple[str, int, str]] = set()
    reported = loop.time()
    while True:
        before = loop.time()
        await asyncio.sleep(BEAT_S)
        now = loop.time()
        lag = max(0.0, now - before - BEAT_S)
        tally.loop_lag_s = max(tally.loop_lag_s, lag)
        if lag > LATE_S:
            _log.warning("the event loop was blocked for %.1f s: something synchronous runs on it", lag)
        if now - reported < every_s:
            continue
        reported = now
        told = _warn(stuck_among(attempts(), now), told)
        report()
        tally.loop_lag_s = 0.0


def _warn(stuck: Iterable[Stuck], told: set[tuple[str, int, str]]) -> set[tuple[str, int, str]]:
    """Warns of what was not told before; gives what is still so."""
    current = {(found.task_id, found.sample, found.stage): found for found in stuck}
    for key in current.keys() - told:
        _log.warning("stuck: %s", current[key])
    return set(current)
