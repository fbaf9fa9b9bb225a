"""Commands of a bubblewrap sandbox: those that enter it, and those that its holder starts in a place of its own.

To enter takes as long as to be started; a holder's place takes nothing but the start. But pipes can only be inherited:
what a holder is to start later has to have its place from the beginning.
"""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import BinaryIO

from skyrl_gym.sandbox import namespaces
from skyrl_gym.sandbox.children import PipeEnds
from skyrl_gym.sandbox.output import CappedOutput
from skyrl_gym.sandbox.processes import children_of, inner_ids, kill, kill_below, kill_until_gone, tree_of
from skyrl_gym.sandbox.running import ChildProcess, Pipes, Visible, in_memory, open_pipe

__all__ = ["Entered", "Place", "Placed"]


class _Enclosed(Visible):
    """Below a process of ours is a bubblewrap, below that pid 1 of the command's own namespace, and below that, as
    pid 2, the command. When the first ends, each ends the next.
    """

    @abstractmethod
    def _top(self) -> int | None:
        """The process of ours, while it lives."""

    def _started(self) -> set[int]:
        first = self._first()
        return tree_of(first) if first else set()

    def _supervisor(self) -> int | None:
        first = self._first()
        return next((pid for pid in children_of(first) if inner_ids(pid)[-1:] == (2,)), None) if first else None

    def _first(self) -> int | None:
        top = self._top()
        ids = {pid: inner_ids(pid) for pid in tree_of(top)} if top else {}
        return min((pid for pid in ids if ids[pid][-1:] == (1,)), key=lambda pid: len(ids[pid]), default=None)


class Entered(_Enclosed, ChildProcess):
    """A command that has entered a holder."""

    def _top(self) -> int | None:
        return self.process.pid if self.process.returncode is None else None

    async def _kill(self) -> None:
        if self.process.returncode is not None:
            return
        first = self._first()
        if first is not None:  # takes all others along, and is reaped by those above it
            kill({first})
        else:  # on its way there. The process that we started is to reap its child, else that becomes a zombie
            await asyncio.to_thread(kill_below, self.process.pid)


class Place:
    """What a holder inherits for one command: its ends of two pipes, and bubblewrap's options in memory.

    Args:
        filtering: a filter of system calls, if there is one.
    """

    def __init__(self, filtering: bytes | None) -> None:
        self._inherited, self._ours = ExitStack(), ExitStack()
        self._ends: PipeEnds | None = None
        self.free = True
        with ExitStack() as failed:
            failed.callback(self.close)
            stdin, self._stdin = _pipe(self._inherited, self._ours)
            self._stdout, stdout = _pipe(self._ours, self._inherited)
            self._arguments = self._ours.enter_context(in_memory(b""))
            self._options = {"--args": self._arguments}
            if filtering:
                self._options["--seccomp"] = self._inherited.enter_context(in_memory(filtering))
            self._streams = (stdin.fileno(), stdout.fileno())
            failed.pop_all()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Those to be inherited."""
        return (*self._streams, *self._options.values())

    def inherited(self) -> None:
        """They have been: their originals are closed."""
        self._inherited.close()

    def request(self, options: bytes, command: Sequence[str]) -> str:
        """What starts a command here; only once, since its pipes go with it."""
        self.free = False
        os.pwrite(self._arguments, options, 0)  # the offset, from which bubblewrap reads, is shared with it
        return namespaces.start(*self._streams, self._options, command)

    async def opened(self) -> Pipes:
        """Our ends of the pipes."""
        self._ends = await PipeEnds.opened(self._stdin, self._stdout)
        return Pipes(self._ends.stdin, self._ends.stdout)

    def close(self) -> None:
        """Closes all that is open here."""
        self._inherited.close()
        if self._ends is not None:
            self._ends.close()
        self._ours.close()


@dataclass(eq=False)
class Placed(_Enclosed):
    """A command that a holder has started; it is talked to.

    Args:
        place: where; closed when the command ends.
        talk: our ends of its pipes.
        holder: the holder's first process.
        number: the command's pid in the holder's namespace.
    """

    place: Place
    talk: Pipes
    holder: int
    number: int

    @property
    def pipes(self) -> Pipes:
        """Its pipes."""
        return self.talk

    async def communicate(self, stdin: bytes, output: CappedOutput) -> int:
        """Not to be asked for."""
        raise TypeError("a command that is talked to has no end to wait for")

    async def end(self) -> None:
        """Kills it with all that it started."""
        if top := self._top():
            await asyncio.to_thread(self._kill, top)
        self.place.close()

    def _kill(self, top: int) -> None:
        if self._first() is None:  # on its way there
            kill_below(top)
        kill_until_gone(lambda: self._started() | ({first} if (first := self._first()) else set()))

    def _top(self) -> int | None:
        depth = len(inner_ids(self.holder))
        for shell in children_of(self.holder):
            for pid in children_of(shell):
                if (ids := inner_ids(pid))[-1:] == (self.number,) and len(ids) == depth:
                    return pid
        return None


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[BinaryIO, BinaryIO]:
    """Both ends of a pipe, the reading one first, and who closes each."""
    reading, writing = open_pipe()
    return reader.enter_context(reading), writer.enter_context(writing)
