"""A command that runs, and whatever it has started; on this machine, a child process behind pipes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, Protocol, TypeVar

from skyrl_gym.sandbox.children import Child
from skyrl_gym.sandbox.output import CappedOutput
from skyrl_gym.sandbox.processes import children_of, freeze, kill, kill_until_gone, thaw

__all__ = [
    "ChildProcess",
    "Pipes",
    "Readable",
    "Running",
    "Visible",
    "Writable",
    "in_memory",
    "open_pipe",
    "pipe",
    "reap",
    "uninterrupted",
]

T = TypeVar("T")
REAP_S = 2.0
DRAIN_S = 1.0
SWEEP_S = 0.3


class Readable(Protocol):
    """Where bytes come from; none at the end."""

    async def read(self, n: int) -> bytes:
        """Some bytes, at most `n`."""
        ...


class Writable(Protocol):
    """Where bytes go."""

    def write(self, data: bytes) -> None:
        """Takes them."""
        ...

    async def drain(self) -> None:
        """Waits until there is room for more."""
        ...


class Pipes(NamedTuple):
    """A running command's stdin and output."""

    stdin: Writable
    stdout: Readable


class Running(ABC):
    """A command that has been started. A backend says how its output is had and how it is killed."""

    @property
    @abstractmethod
    def pipes(self) -> Pipes:
        """Of a command that is talked to while it runs."""

    @abstractmethod
    async def communicate(self, stdin: bytes, output: CappedOutput) -> int:
        """Its exit status once it has ended (negative: a signal); what it left running is ended too."""

    @abstractmethod
    async def end(self) -> None:
        """Kills it with all that it started, and frees what it held."""

    @abstractmethod
    async def sweep(self, spare_driver: bool) -> None:
        """Of a shell: kills what its commands started, orphans too, and the driver unless it is spared."""

    @abstractmethod
    async def hold(self) -> None:
        """Stops all of its processes where they are, until `go_on`."""

    @abstractmethod
    async def go_on(self) -> None:
        """Lets them run again."""


class Visible(Running):
    """A command whose processes this machine sees. A backend says which they are."""

    async def hold(self) -> None:
        """Stops all of its processes where they are, until `go_on`."""
        await asyncio.to_thread(freeze, self._started)

    async def go_on(self) -> None:
        """Lets them run again."""
        thaw(self._started())

    async def sweep(self, spare_driver: bool) -> None:
        """Of a shell: kills what its commands started, orphans too, and the driver unless it is spared."""

        def work() -> None:
            supervisor = self._supervisor()
            drivers = children_of(supervisor) if supervisor else set()

            def found() -> set[int]:
                fresh = children_of(supervisor) - drivers if supervisor else set()
                return self._started() - {supervisor} - fresh - (drivers if spare_driver else set())

            # One that is dying may still take a byte of the next command: it must be gone.
            kill_until_gone(found, limit_s=SWEEP_S if spare_driver else REAP_S)

        await asyncio.to_thread(work)

    @abstractmethod
    def _supervisor(self) -> int | None:
        """The command's own process, as the host sees it."""

    @abstractmethod
    def _started(self) -> set[int]:
        """All processes of the command that still live, as the host sees them."""


@dataclass(eq=False)
class ChildProcess(Visible):
    """Owns a child process that has piped stdin and stdout. A backend says what belongs to it and how it is killed."""

    process: Child

    @property
    def pipes(self) -> Pipes:
        """Its pipes."""
        return Pipes(self.process.stdin, self.process.stdout)

    async def communicate(self, stdin: bytes, output: CappedOutput) -> int:
        """Its exit status; see `Running.communicate`."""
        feeding = asyncio.create_task(_feed(self.process, stdin))
        collecting = asyncio.create_task(_collect(self.process, output))
        try:
            code = await asyncio.shield(self.process.ended)
            await self._kill()  # a daemon could hold the pipe open
            await asyncio.wait({collecting}, timeout=DRAIN_S)
            return code
        finally:
            for task in (feeding, collecting):
                task.cancel()
            await asyncio.gather(feeding, collecting, return_exceptions=True)

    async def end(self) -> None:
        """Kills it with all that it started, and reaps it."""
        await self._kill()
        await reap(self.process)

    @abstractmethod
    async def _kill(self) -> None:
        """Ends the child process and all that it started."""


@contextmanager
def pipe() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Both ends of a pipe, the reading one first, closed with the block."""
    reader, writer = open_pipe()
    with reader, writer:
        yield reader, writer


def open_pipe() -> tuple[BinaryIO, BinaryIO]:
    """Both ends of a pipe, the reading one first, for owners of their own."""
    ends = os.pipe()
    return os.fdopen(ends[0], "rb", buffering=0), os.fdopen(ends[1], "wb", buffering=0)


@contextmanager
def in_memory(data: bytes) -> Iterator[int]:
    """A descriptor from which a program can read this."""
    descriptor = os.memfd_create("skyrl")
    try:
        os.write(descriptor, data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


async def reap(process: Child) -> None:
    """Waits for a process that has been told to end, and closes its pipes."""
    await asyncio.wait({process.ended}, timeout=REAP_S)
    if not process.ended.done():
        kill({process.pid})
        await asyncio.shield(process.ended)
    process.close()


async def uninterrupted(work: Awaitable[T]) -> T:
    """Runs to its end even when the caller is cancelled, however often; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    interruption: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            interruption = error
    if interruption is not None:
        raise interruption
    return task.result()


async def _feed(process: Child, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _collect(process: Child, output: CappedOutput) -> None:
    while data := await process.stdout.read(262_144):
        output.feed(data)
