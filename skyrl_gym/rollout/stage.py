"""Running someone else's code so that it ends on time, whatever it does with its cancellation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from skyrl_gym.errors import EnvError, SkyRLError

__all__ = ["all_ended", "close_in_time", "outlast", "settle", "typed", "within"]

T = TypeVar("T")
_log = logging.getLogger(__name__)

# What a stage's own code may raise when the world around it is away; in the run stage, tools answer with it.
_OUTSIDE = (TimeoutError, ConnectionError)


async def typed(
    task: asyncio.Task[T], limit_s: float | None, *, stop_s: float, expired: type[SkyRLError], failed: type[SkyRLError]
) -> T:
    """The result of a stage; its own clock and a world that is away end it as exceptions of these classes.

    Raises:
        Exception: as `within`.
    """

    def late() -> SkyRLError:
        return expired(f"{task.get_name()} took longer than {limit_s:g} s")

    try:
        return await within(limit_s, task, late, stop_s=stop_s)
    except _OUTSIDE as error:
        raise failed(f"{task.get_name()}: {type(error).__name__}: {error}") from error


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


async def all_ended(tasks: set[asyncio.Task[Any]]) -> None:
    """Waits for tasks that are being cancelled, through cancellations of the caller."""
    interrupted: asyncio.CancelledError | None = None
    while pending := {task for task in tasks if not task.done()}:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            interrupted = error
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


async def close_in_time(
    closing: asyncio.Task[None], limit_s: float, *, stop_s: float
) -> tuple[bool, asyncio.CancelledError | None]:
    """Waits for a teardown, also while the caller is being cancelled; one that hangs is left and reported.

    Gives whether it leaked, and the cancellation that came to the caller meanwhile, which it is to raise.
    """
    interrupted = await outlast(closing, limit_s)
    leaked = not closing.done()
    if leaked:
        _log.error("%s did not end within %g s: a leak", closing.get_name(), limit_s)
        try:
            await settle(closing, stop_s)
        except asyncio.CancelledError as cancelled:
            interrupted = cancelled
    elif not closing.cancelled() and (error := closing.exception()) is not None:
        _log.error("%s failed", closing.get_name(), exc_info=error)
    return leaked, interrupted


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Looks at the outcome, so that asyncio does not complain that nobody did."""
    if not task.cancelled():
        task.exception()
