"""Running someone else's code so that it ends on time, whatever it does with its cancellation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from skyrl_gym.errors import EnvError

__all__ = ["outlast", "settle", "within"]

T = TypeVar("T")
_log = logging.getLogger(__name__)


async def within(limit_s: float | None, task: asyncio.Task[T], expired: Callable[[], Exception], *, stop_s: float) -> T:
    """The result of a task, or its end at the deadline.

    A task that is late gets cancelled; one that ignores that for `stop_s` seconds is left behind and
    reported. What it returns after its deadline is not taken.

    Raises:
        Exception: what `expired` makes, at the deadline; else what the task raised.
        EnvError: the task cancelled itself, which would else look like a cancellation of the caller.
    """
    try:
        done, _ = await asyncio.wait({task}, timeout=limit_s)
    except asyncio.CancelledError:
        await settle(task, stop_s)
        raise
    if not done:
        late = expired()
        await settle(task, stop_s)
        raise late
    if task.cancelled():
        raise EnvError(f"{task.get_name()} was cancelled from inside")
    return task.result()


async def settle(task: asyncio.Task[Any], stop_s: float) -> None:
    """Cancels a task and waits until it has ended; one that has not after `stop_s` seconds is left and reported.

    A cancellation of the caller is held back until then, so that nothing is left half stopped.
    """
    task.cancel()
    interrupted = await outlast(task, stop_s)
    if not task.done():
        _log.error("%s ignored its cancellation for %g s and is left behind: a leak", task.get_name(), stop_s)
    task.add_done_callback(_retrieve)
    if interrupted is not None:
        raise interrupted


async def outlast(task: asyncio.Task[Any], limit_s: float) -> asyncio.CancelledError | None:
    """Waits until a task has ended or `limit_s` seconds are over.

    Gives back the cancellation that came to the caller meanwhile; raising it is the caller's duty.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + limit_s
    interrupted: asyncio.CancelledError | None = None
    while not task.done() and (left := until - loop.time()) > 0:
        try:
            await asyncio.wait({task}, timeout=left)
        except asyncio.CancelledError as error:
            interrupted = error
    return interrupted


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Looks at the outcome, so that asyncio does not complain that nobody did."""
    if not task.cancelled():
        task.exception()
