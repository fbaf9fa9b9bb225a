"""Sessions: a bounded number of things held open for clients that may never come back."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from skyrl_gym.errors import SkyRLError, UserError

__all__ = ["NoSuchSession", "Sessions", "TooManySessions"]

_log = logging.getLogger(__name__)
T = TypeVar("T")
CHECKS = 4  # looks for idle sessions in one idle time


class TooManySessions(SkyRLError):
    """Every session is taken; one becomes free when a client closes its own or is gone for too long."""


class NoSuchSession(UserError):
    """No session of this name: it never was, was closed, or was idle for too long."""


@dataclass
class _Held(Generic[T]):
    value: T
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    used: float = field(default_factory=time.monotonic)


class Sessions(Generic[T]):
    """Named values, each used by one request at a time and ended exactly once.

    Args:
        most: how many there may be, those being made and ended included.
        idle_s: one that nobody used for so many seconds is ended.
        end: frees a value; `idle` says that its client is gone.
    """

    def __init__(self, most: int, idle_s: float, end: Callable[[T, bool], Awaitable[None]]) -> None:
        self.most = most
        self.idle_s = idle_s
        self._end = end
        self._held: dict[str, _Held[T]] = {}
        self._taken = 0

    @property
    def live(self) -> int:
        """How many are taken."""
        return self._taken

    async def open(self, make: Callable[[], Awaitable[T]]) -> tuple[str, T]:
        """A new session and its name, which nobody can guess.

        Raises:
            TooManySessions: all are taken.
        """
        if self._taken >= self.most:
            raise TooManySessions(f"all {self.most} sessions are taken; close one, or wait until one is idle")
        self._taken += 1
        try:
            value = await make()
        except BaseException:
            self._taken -= 1
            raise
        name = secrets.token_urlsafe(16)
        self._held[name] = _Held(value)
        return name, value

    @asynccontextmanager
    async def use(self, name: str) -> AsyncIterator[T]:
        """The value of a session, alone for as long as the block runs.

        Raises:
            NoSuchSession: there is none of this name.
        """
        held = self._held.get(name)
        if held is None:
            raise NoSuchSession(f"no session {name!r}: it was closed, idle for {self.idle_s:g} s, or never was")
        held.users += 1
        try:
            async with held.lock:
                if self._held.get(name) is not held:
                    raise NoSuchSession(f"session {name!r} was closed while this request waited")
                yield held.value
        finally:
            held.users -= 1
            held.used = time.monotonic()

    @asynccontextmanager
    async def take(self, name: str) -> AsyncIterator[T]:
        """As `use`, for the last time: the block ends the value, and its place is free afterwards.

        Raises:
            NoSuchSession: there is none of this name.
        """
        async with self.use(name) as value:
            del self._held[name]
            try:
                yield value
            finally:
                self._taken -= 1

    async def close(self, name: str) -> None:
        """Ends a session once whoever uses it is done.

        Raises:
            NoSuchSession: there is none of this name.
        """
        async with self.take(name) as value:
            await self._free(value, idle=False)

    async def reap(self) -> None:
        """Ends idle sessions, until it is cancelled."""
        while True:
            await asyncio.sleep(self.idle_s / CHECKS)
            limit = time.monotonic() - self.idle_s
            idle = [name for name, held in self._held.items() if not held.users and held.used < limit]
            for name in idle:
                held = self._held.pop(name)
                await self._free(held.value, idle=True)
                self._taken -= 1

    async def aclose(self) -> None:
        """Ends all."""
        while self._held:
            name = next(iter(self._held))
            await self.close(name)

    async def _free(self, value: T, *, idle: bool) -> None:
        try:
            await self._end(value, idle)
        except Exception:  # noqa: BLE001 - whatever its end raises, the place is free again
            _log.exception("a session did not end well")
