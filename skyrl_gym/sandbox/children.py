"""Child processes behind pipes, whose end is told by a descriptor: no thread waits for each, as asyncio's own do."""

from __future__ import annotations

import asyncio
import os
import subprocess
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from skyrl_gym.sandbox.processes import kill_tree

__all__ = ["Child", "spawn"]


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
        self.stdout = asyncio.StreamReader()
        self._reading, _ = await self._loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self.stdout), self._popen.stdout
        )
        self._writing, protocol = await self._loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), self._popen.stdin
        )
        self.stdin = asyncio.StreamWriter(self._writing, protocol, None, self._loop)

    @property
    def returncode(self) -> int | None:
        """The exit status; None while it runs, or nobody has looked."""
        return self._popen.returncode

    def close(self) -> None:
        """Closes the pipes."""
        self._reading.close()
        self._writing.close()

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
