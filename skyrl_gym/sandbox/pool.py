"""Sandboxes started ahead of time, and what was prepared in one kept for all others of its kind."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from skyrl_gym.errors import SandboxError, SandboxLost
from skyrl_gym.sandbox.base import Sandbox, SandboxSpec, Snapshot
from skyrl_gym.sandbox.ledger import Ledger
from skyrl_gym.sandbox.opening import open_sandbox
from skyrl_gym.sandbox.running import uninterrupted

__all__ = ["Preparation", "SandboxPool", "pool_in_use", "to_be_asked_again"]

T = TypeVar("T")
WANTED_AGAIN = 2  # asked for so often, a kind is taken to be asked for once more
_in_use: ContextVar[SandboxPool | None] = ContextVar("pool of sandboxes", default=None)
_again: ContextVar[bool] = ContextVar("the same will be asked for again", default=False)


def pool_in_use() -> SandboxPool | None:
    """The pool that this code is to take its sandboxes from, if whoever runs it has one: a run of episodes has."""
    return _in_use.get()


@contextmanager
def to_be_asked_again(again: bool = True) -> Iterator[None]:
    """Whoever asks a pool for a sandbox meanwhile will ask for another like it: the first is already kept for that."""
    token = _again.set(again)
    try:
        yield
    finally:
        _again.reset(token)


@dataclass(frozen=True)
class Preparation(Generic[T]):
    """What is done in a new sandbox before it is used.

    Args:
        name: stands for all that the work depends on besides the specification.
        work: does it; what it returns must be true of every sandbox with the same files.
    """

    name: str
    work: Callable[[Sandbox], Awaitable[T]]


@dataclass
class _Kept:
    """The files of a prepared sandbox, and what its preparation returned."""

    snapshot: Snapshot
    value: Any
    users: int = 0


@dataclass
class _Kind:
    """Sandboxes that are made alike."""

    spec: SandboxSpec
    backend: str
    preparation: Preparation[Any] | None
    asked: int = 0
    askers: int = 0
    ready: deque[tuple[Sandbox, Any]] = field(default_factory=deque)
    starting: int = 0
    kept: _Kept | None = None
    preparing: asyncio.Lock = field(default_factory=asyncio.Lock)


class SandboxPool:
    """Keeps sandboxes ready, by what they are made from: backend, image, mounts, environment, limits, preparation.

    One that has been used is never given out again. What has been asked for twice, or once by who says that there
    will be more (`to_be_asked_again`), is taken to be asked for again: only then others are started ahead, and the
    files of a preparation kept, so that the next ones begin with them.
    All belong to the event loop that the pool is used on.

    Args:
        ready: how many are kept of each kind.
        most: how many are kept in all, and of how many kinds the prepared files are; what was asked for longest ago
            goes first.
        starting: how many are started at once, ahead of time.
        ledger: where they are entered; the process's unless given.
    """

    def __init__(self, *, ready: int = 2, most: int = 32, starting: int = 2, ledger: Ledger | None = None) -> None:
        self._wanted = ready
        self._most = most
        self._ledger = ledger
        self._kinds: OrderedDict[str, _Kind] = OrderedDict()
        self._room = asyncio.Semaphore(starting)
        self._tasks: dict[asyncio.Task[None], _Kind] = {}
        self._closed = False

    async def take(self, spec: SandboxSpec, backend: str = "bubblewrap") -> Sandbox:
        """A started sandbox, the caller's from now on.

        Raises:
            SandboxError: there was none ready, and none can be started.
        """
        return (await self._take(self._kind(spec, backend, None)))[0]

    async def take_prepared(
        self, spec: SandboxSpec, preparation: Preparation[T], backend: str = "bubblewrap"
    ) -> tuple[Sandbox, T]:
        """A started sandbox in which the preparation has been done, or one with its files; and what it returned.

        Raises:
            SandboxError: there was none ready, and none can be started.
            Exception: whatever the preparation raises.
        """
        return await self._take(self._kind(spec, backend, preparation))

    async def warm(self, spec: SandboxSpec, backend: str = "bubblewrap") -> None:
        """Waits until as many are ready as are kept of a kind.

        Raises:
            SandboxError: they can't be started.
        """
        kind = self._kind(spec, backend, None)
        self._refill(kind)
        starting = [task for task, its_kind in self._tasks.items() if its_kind is kind]
        await asyncio.gather(*starting, return_exceptions=True)
        for task in starting:
            if error := task.exception():
                raise error

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Meanwhile, `pool_in_use` gives this one to the code that is run here, and to tasks that are begun here."""
        token = _in_use.set(self)
        try:
            yield
        finally:
            _in_use.reset(token)

    @property
    def ready(self) -> int:
        """How many are ready now."""
        return sum(len(kind.ready) for kind in self._kinds.values())

    @property
    def kept(self) -> int:
        """Of how many kinds the prepared files are kept now."""
        return sum(kind.kept is not None for kind in self._kinds.values())

    async def close(self) -> None:
        """Closes all that are ready, gives up those that are being started, and frees the files that are kept."""
        self._closed = True
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        kinds = tuple(self._kinds.values())
        self._kinds.clear()
        boxes = [box.close() for kind in kinds for box, _ in kind.ready]
        await asyncio.gather(*boxes, *(kind.kept.snapshot.close() for kind in kinds if kind.kept))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _kind(self, spec: SandboxSpec, backend: str, preparation: Preparation[Any] | None) -> _Kind:
        """Those that are made so, now the kind that was asked for last."""
        if self._closed:
            raise SandboxError("the pool of sandboxes has been closed")
        key = json.dumps([backend, asdict(spec), preparation and preparation.name], sort_keys=True)
        kind = self._kinds.setdefault(key, _Kind(spec, backend, preparation))
        self._kinds.move_to_end(key)
        for idle in [other for other in self._kinds if other != key and _is_idle(self._kinds[other])][: -self._most]:
            del self._kinds[idle]
        return kind

    async def _take(self, kind: _Kind) -> tuple[Sandbox, Any]:
        kind.asked += WANTED_AGAIN if _again.get() else 1
        kind.askers += 1
        try:
            return await self._ready_or_new(kind)
        finally:
            kind.askers -= 1

    async def _ready_or_new(self, kind: _Kind) -> tuple[Sandbox, Any]:
        while kind.ready:
            box, value = kind.ready.popleft()
            if await _alive(box):
                self._refill(kind)
                return box, value
            await box.close()
        made = await self._make(kind)
        if kind.asked >= WANTED_AGAIN and not self._closed:
            self._refill(kind)
        return made

    async def _make(self, kind: _Kind) -> tuple[Sandbox, Any]:
        """A new one: as the kept files have it, else prepared by itself; one at a time, so that others can wait."""
        if kind.preparation is None:
            return await self._open(kind), None
        async with kind.preparing:
            if kind.kept is None:
                return await self._prepared(kind, kind.preparation)
            kept = kind.kept
            kept.users += 1  # so that it is not given up meanwhile
        try:
            return await self._open(kind, kept.snapshot), kept.value
        finally:
            kept.users -= 1

    async def _prepared(self, kind: _Kind, preparation: Preparation[Any]) -> tuple[Sandbox, Any]:
        box = await self._open(kind)
        try:
            value = await preparation.work(box)
            if kind.asked >= WANTED_AGAIN and not self._closed:
                await self._keep(kind, await box.snapshot(), value)
        except BaseException:
            await box.close()
            raise
        return box, value

    async def _keep(self, kind: _Kind, snapshot: Snapshot, value: Any) -> None:
        if self._closed:
            await snapshot.close()
            return
        kind.kept = _Kept(snapshot, value)
        await self._make_room()

    def _refill(self, kind: _Kind) -> None:
        for _ in range(self._wanted - len(kind.ready) - kind.starting):
            task = asyncio.create_task(self._start(kind))
            kind.starting += 1
            self._tasks[task] = kind
            task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task).starting -= 1
        if not task.cancelled():
            task.exception()  # who takes the next one starts it, and hears of it

    async def _start(self, kind: _Kind) -> None:
        async with self._room:
            made = await self._make(kind)
        kind.ready.append(made)
        await self._make_room()

    async def _make_room(self) -> None:
        """Gives up what was asked for longest ago, of what is more than the bounds."""
        while self.ready > self._most:
            oldest = next(kind for kind in self._kinds.values() if kind.ready)
            await oldest.ready.popleft()[0].close()
        idle = [kind for kind in self._kinds.values() if kind.kept and not kind.kept.users]
        for kind in idle[: max(0, self.kept - self._most)]:
            kept, kind.kept = kind.kept, None
            assert kept is not None
            await uninterrupted(kept.snapshot.close())

    async def _open(self, kind: _Kind, snapshot: Snapshot | None = None) -> Sandbox:
        return await open_sandbox(kind.spec, kind.backend, ledger=self._ledger, snapshot=snapshot)


def _is_idle(kind: _Kind) -> bool:
    """Nothing but how often it was asked for is known of it."""
    return not (kind.askers or kind.ready or kind.starting or kind.kept)


async def _alive(box: Sandbox) -> bool:
    """Whether it has outlived the wait."""
    try:
        await box.shell()
    except SandboxLost:
        return False
    return True
