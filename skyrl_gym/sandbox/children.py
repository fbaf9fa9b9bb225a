"""Child processes behind pipes, whose end is told by a descriptor: no thread waits for each, as asyncio's own do."""

from __future__ import annotations

import asyncio
import os
import subprocess
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from skyrl_gym.sandbox.processes import kill_tree

__all__ = ["Child", "PipeEnds", "spawn"]


@dataclass(frozen=True)
class PipeEnds:
    """Our ends of a process's stdin and stdout, which do not block."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    _reading: asyncio.ReadTransport

    @classmethod
    async def opened(cls, stdin: IO[bytes], stdout: IO[bytes]) -> Self:
        """Of files, which it closes when it is closed."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        reading, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stdout)
        writing, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), stdin
        )
        return cls(asyncio.StreamWriter(writing, protocol, None, loop), reader, reading)

    def close(self) -> None:
        """Closes both."""
        self._reading.close()
        self.stdin.close()


class Child:
    """A child process with piped stdin and stdout; `ended` is done with its exit status, negative for a signal."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self._loop = asyncio.get_running_loop()
        self.pid = popen.pid
        self.ended: asyncio.Future[int] = self._loop.create_future()
        self._watched = os.pidfd_open(popen.pid)
        self._close_watched = weakref.finalize(self, os.close, self._watched)  # also where the loop ends before it
        self._loop.add_reader(self._watched, self._on_end)

    async def connect(self) -> None:
        """Makes its pipes readable and writable without blocking."""
        assert self._popen.stdin is not None and self._popen.stdout is not None
        self._ends = await PipeEnds.opened(self._popen.stdin, self._popen.stdout)
        self.stdin, self.stdout = self._ends.stdin, self._ends.stdout

    @property
    def returncode(self) -> int | None:
        """The exit status; None while it runs, or nobody has looked."""
        return self._popen.returncode

    def close(self) -> None:
        """Closes the pipes."""
        self._ends.close()

    def _on_end(self) -> None:
        code = self._popen.poll()
        assert code is not None
        self._loop.remove_reader(self._watched)
        self._close_watched()
        self.ended.set_result(code)


async def spawn(
    *command: str, env: Mapping[str, str], cwd: Path | None = None, pass_fds: Sequence[int] = (), session: bool = False
) -> Child:
    """A child process with piped stdin and stdout, stderr joined to stdout; only to be run by `uninterrupted`.

    Raises:
        OSError: it can't be started or watched; nothing is left of it.
    """
    popen = _started(command, env, cwd, pass_fds, session)
    try:
        child = Child(popen)
        await child.connect()
    except BaseException:
        kill_tree(popen.pid)
        with popen:  # closes its pipes and reaps it
            raise
    return child


def _started(
    command: Sequence[str], env: Mapping[str, str], cwd: Path | None, pass_fds: Sequence[int], session: bool
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env=env,
        cwd=cwd,
        pass_fds=pass_fds,
        start_new_session=session,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
    )
