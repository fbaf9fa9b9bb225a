"""Sandboxes started ahead of time, for those who know what they will need."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict, deque
from dataclasses import asdict
from types import TracebackType
from typing import Self

from skyrl_gym.errors import SandboxError, SandboxLost
from skyrl_gym.sandbox.base import Sandbox, SandboxSpec
from skyrl_gym.sandbox.ledger import Ledger

__all__ = ["SandboxPool"]


class SandboxPool:
    """Keeps sandboxes ready, by what they are made from: image, mounts, environment, limits.

    One that has been used is never given out again. All of them belong to the event loop that the pool is used on.

    Args:
        backend: of all its sandboxes.
        ready: how many are kept for each specification that has been asked for.
        most: how many are kept in all; those of the specification that was asked for longest ago go first.
        starting: how many are started at once, ahead of time.
        ledger: where they are entered; the process's unless given.
    """

    def __init__(
        self,
        backend: str = "bubblewrap",
        *,
        ready: int = 2,
        most: int = 32,
        starting: int = 2,
        ledger: Ledger | None = None,
    ) -> None:
        self._backend = backend
        self._wanted = ready
        self._most = most
        self._ledger = ledger
        self._ready: OrderedDict[str, deque[Sandbox]] = OrderedDict()
        self._room = asyncio.Semaphore(starting)
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._closed = False

    async def take(self, spec: SandboxSpec) -> Sandbox:
        """A started sandbox, the caller's from now on; another like it is started in the background.

        Raises:
            SandboxError: there was none ready, and none can be started.
        """
        self._check_open()
        key = _key(spec)
        while box := self._pop(key):
            if await _alive(box):
                self._refill(key, spec)
                return box
            await box.close()
        box = await self._open(spec)
        if not self._closed:
            self._refill(key, spec)
        return box

    async def warm(self, spec: SandboxSpec) -> None:
        """Waits until as many are ready as are kept of a specification.

        Raises:
            SandboxError: they can't be started.
        """
        self._check_open()
        key = _key(spec)
        self._refill(key, spec)
        starting = [task for task, its_key in self._tasks.items() if its_key == key]
        await asyncio.gather(*starting, return_exceptions=True)
        for task in starting:
            if error := task.exception():
                raise error

    @property
    def ready(self) -> int:
        """How many are ready now."""
        return sum(map(len, self._ready.values()))

    async def close(self) -> None:
        """Closes all that are ready, and gives up those that are being started."""
        self._closed = True
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        boxes = [box for queue in self._ready.values() for box in queue]
        self._ready.clear()
        await asyncio.gather(*(box.close() for box in boxes))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxError("the pool of sandboxes has been closed")

    def _pop(self, key: str) -> Sandbox | None:
        queue = self._ready.get(key)
        return queue.popleft() if queue else None

    def _refill(self, key: str, spec: SandboxSpec) -> None:
        queue = self._ready.setdefault(key, deque())
        self._ready.move_to_end(key)
        on_their_way = sum(its_key == key for its_key in self._tasks.values())
        for _ in range(self._wanted - len(queue) - on_their_way):
            task = asyncio.create_task(self._start(key, spec))
            self._tasks[task] = key
            task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()  # who takes the next one starts it, and hears of it

    async def _start(self, key: str, spec: SandboxSpec) -> None:
        async with self._room:
            box = await self._open(spec)
        self._ready.setdefault(key, deque()).append(box)
        await self._make_room()

    async def _make_room(self) -> None:
        while self.ready > self._most:
            oldest = next(key for key, queue in self._ready.items() if queue)
            await self._ready[oldest].popleft().close()

    async def _open(self, spec: SandboxSpec) -> Sandbox:
        from skyrl_gym.sandbox import open_sandbox

        return await open_sandbox(spec, self._backend, ledger=self._ledger)


async def _alive(box: Sandbox) -> bool:
    """Whether it has outlived the wait."""
    try:
        await box.shell()
    except SandboxLost:
        return False
    return True


def _key(spec: SandboxSpec) -> str:
    return json.dumps(asdict(spec), sort_keys=True)
