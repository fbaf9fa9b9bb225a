"""What the sandboxes of this machine have in common: a scratch folder, commands as child processes, files by `cat`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import ClassVar, Self

from skyrl_gym.errors import SandboxError, SandboxLost
from skyrl_gym.sandbox.base import ExecResult, ExecStatus, Mount, SandboxSpec, Shell
from skyrl_gym.sandbox.ledger import Entry, Ledger
from skyrl_gym.sandbox.output import CappedOutput
from skyrl_gym.sandbox.processes import children_of, kill, marked, tree_of
from skyrl_gym.sandbox.shell import DRIVER_ENV, SHELL_COMMAND, PipeShell

__all__ = ["LocalSandbox", "Started"]

FILE_TIMEOUT_S = 60.0
REAP_S = 2.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# `sh` with the path as an argument of its own: a name that begins with a dash is still a name.
_READ = 'f=$1; [ -d "$f" ] && exit 21; [ -e "$f" ] || exit 2; [ -r "$f" ] || exit 13; exec cat < "$f"'
_WRITE = 'f=$1; [ -d "$f" ] && exit 21; mkdir -p -- "$(dirname -- "$f")" && exec cat > "$f"'


class Started:
    """A running command.

    Args:
        process: the child process to talk to.
        root: the process whose tree is killed; the namespace's pid 1 where there is one.
        mark: NAME=value in the environment of everything that it starts, to find daemons that left the tree.
    """

    def __init__(self, process: asyncio.subprocess.Process, root: int, mark: str = "") -> None:
        self.process = process
        self.root = root
        self._mark = mark

    @property
    def main(self) -> int:
        """The command itself: the first process below the namespace's pid 1, or the root."""
        return self.root if self.root == self.process.pid else min(children_of(self.root), default=self.root)

    def others(self) -> set[int]:
        """Everything that it started and that still lives."""
        return tree_of(self.root) | (marked(self._mark) if self._mark else set())

    async def end(self) -> None:
        """Kills the whole tree and reaps it."""
        kill(self.others() | {self.root})
        try:
            # An outer process reaps the namespace's pid 1 and ends by itself; killed first, it would leave a zombie.
            async with asyncio.timeout(REAP_S):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
        # asyncio closes the pipes only when it is told.
        self.process._transport.close()  # type: ignore[attr-defined]


class LocalSandbox(ABC):
    """A sandbox made of child processes and a scratch folder on this machine."""

    backend: ClassVar[str]

    def __init__(self, spec: SandboxSpec, ledger: Ledger) -> None:
        self.spec = spec
        self.capabilities: frozenset[str] = frozenset()
        self._ledger = ledger
        self._entry: Entry | None = None
        self._scratch: Path | None = None
        self._running: set[Started] = set()
        self._shell: _RestartingShell | None = None
        self._closed = False

    @abstractmethod
    async def _spawn(self, command: Sequence[str], env: Mapping[str, str]) -> Started:
        """Starts a command with piped stdin and stdout, stderr joined to stdout."""

    @abstractmethod
    def _owner(self) -> int | None:
        """The user that files in the scratch folder must belong to; None for the present one."""

    async def start(self) -> Self:
        """Makes the scratch folder and copies private mounts into it.

        Raises:
            SandboxError: a mount can't be had; nothing is left behind.
        """
        self._entry = self._ledger.enter(self.backend)
        try:
            self._scratch = Path(tempfile.mkdtemp(prefix="skyrl-"))
            self._entry.folders.append(self._scratch)
            await asyncio.to_thread(self._prepare, self._scratch)
        except BaseException as error:
            await self.close()
            if isinstance(error, OSError | shutil.Error):
                raise SandboxError(f"can't prepare a {self.backend} sandbox: {error}") from error
            raise
        return self

    async def exec(
        self,
        command: str | list[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        max_bytes: int = 1_048_576,
    ) -> ExecResult:
        """Runs one command; see `Sandbox.exec`."""
        self._check_open()
        arguments = ["bash", "-c", command] if isinstance(command, str) else command
        started_at = time.monotonic()
        started = await self._begin(arguments, env or {})
        output = CappedOutput(max_bytes)
        status: ExecStatus = "ok"
        clock = asyncio.timeout(timeout_s)
        try:
            async with clock:
                await asyncio.gather(_feed(started.process, stdin), _collect(started.process, output))
                await started.process.wait()
        except TimeoutError:
            if not clock.expired():
                raise
            status = "timeout"
        finally:
            code = started.process.returncode
            await self._finish(started)
        return ExecResult(output.value(), code, status, time.monotonic() - started_at, output.dropped)

    async def shell(self) -> Shell:
        """The persistent shell."""
        self._check_open()
        if self._shell is None:
            self._shell = _RestartingShell(self._start_shell, self._finish)
            await self._shell.start()
        return self._shell

    async def _start_shell(self) -> tuple[PipeShell, Started]:
        self._check_open()
        started = await self._begin(SHELL_COMMAND, DRIVER_ENV)
        return PipeShell(started.process, lambda spare: _sweep(started, spare)), started

    async def read(self, path: str | PurePosixPath, *, max_bytes: int = 16_777_216) -> bytes:
        """A file's bytes; see `Sandbox.read`."""
        result = await self.exec(
            ["sh", "-c", _READ, "sh", str(path)], timeout_s=FILE_TIMEOUT_S, max_bytes=2 * max_bytes
        )
        _raise_for(result, path)
        if len(result.output) > max_bytes or result.dropped_bytes:
            raise SandboxError(f"{path} is larger than {max_bytes} bytes")
        return result.output

    async def write(self, path: str | PurePosixPath, data: bytes) -> None:
        """Writes a file; see `Sandbox.write`."""
        result = await self.exec(["sh", "-c", _WRITE, "sh", str(path)], timeout_s=FILE_TIMEOUT_S, stdin=data)
        _raise_for(result, path)

    async def close(self) -> None:
        """Kills every process and removes the scratch folder; a caller's cancellation does not cut it short."""
        if self._closed:
            return
        self._closed = True
        closing = asyncio.ensure_future(self._close())
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await closing
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ---- inside

    async def _close(self) -> None:
        for started in tuple(self._running):
            await self._finish(started)
        if self._scratch is not None:
            await asyncio.to_thread(_remove, self._scratch)
        if self._entry is not None:
            self._ledger.strike(self._entry)

    async def _begin(self, command: Sequence[str], env: Mapping[str, str]) -> Started:
        started = await self._spawn(command, {**self.spec.env, **env})
        self._running.add(started)
        if self._entry is not None:
            self._entry.pids.append(started.root)
        return started

    async def _finish(self, started: Started) -> None:
        self._running.discard(started)
        await started.end()
        if self._entry is not None and started.root in self._entry.pids:
            self._entry.pids.remove(started.root)

    def _check_open(self) -> None:
        if self._closed or self._scratch is None:
            raise SandboxLost("the sandbox has been closed")

    def _prepare(self, scratch: Path) -> None:
        for name in ("work", "tmp"):
            (scratch / name).mkdir()
        for number, mount in enumerate(self.spec.mounts):
            if not Path(mount.source).is_dir():
                raise SandboxError(f"no such folder to mount: {mount.source}")
            if mount.mode == "private":
                shutil.copytree(mount.source, self._copy_of(number), symlinks=True, dirs_exist_ok=True)
        owner = self._owner()
        if owner is not None:
            for folder, _, files in os.walk(scratch):
                for path in (folder, *(os.path.join(folder, file) for file in files)):
                    os.chown(path, owner, owner, follow_symlinks=False)

    def _copy_of(self, number: int) -> Path:
        """Where the private copy of a mount stands; one at the working directory is that directory."""
        assert self._scratch is not None
        mount: Mount = self.spec.mounts[number]
        return self._scratch / ("work" if mount.target == self.spec.workdir else f"mount-{number}")


class _RestartingShell:
    """A shell that comes back: a command that kills even its supervisor ends the shell, not the sandbox."""

    def __init__(
        self,
        start: Callable[[], Awaitable[tuple[PipeShell, Started]]],
        finish: Callable[[Started], Awaitable[None]],
    ) -> None:
        self._start = start
        self._finish = finish
        self._current: tuple[PipeShell, Started] | None = None

    async def start(self) -> PipeShell:
        """The running shell, started if there is none."""
        self._current = self._current or await self._start()
        return self._current[0]

    async def run(self, command: str, *, timeout_s: float, max_bytes: int = 65_536) -> ExecResult:
        """Runs one command line; see `Shell.run`."""
        began = time.monotonic()
        shell = await self.start()
        try:
            return await shell.run(command, timeout_s=timeout_s, max_bytes=max_bytes)
        except SandboxLost:
            if self._current is not None and self._current[0] is shell:
                started, self._current = self._current[1], None
                await self._finish(started)
            return ExecResult(b"", None, "shell_exited", time.monotonic() - began)


async def _sweep(started: Started, spare_driver: bool) -> None:
    """Kills what a shell's commands started, orphans too, and the driver unless it is spared."""
    supervisor = started.main
    drivers = children_of(supervisor) if spare_driver else set()
    kill(started.others() - {started.root, supervisor} - drivers)


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _collect(process: asyncio.subprocess.Process, output: CappedOutput) -> None:
    assert process.stdout is not None
    while data := await process.stdout.read(262_144):
        output.feed(data)


def _raise_for(result: ExecResult, path: object) -> None:
    if result.status == "timeout":
        raise SandboxError(f"reading or writing {path} took longer than {FILE_TIMEOUT_S:g} s")
    match result.code:
        case 0:
            return
        case 2:
            raise FileNotFoundError(f"no such file: {path}")
        case 21:
            raise IsADirectoryError(f"is a folder: {path}")
        case 13:
            raise PermissionError(f"not readable: {path}")
    raise PermissionError(f"{path}: {result.text.strip() or f'exit status {result.code}'}")


def _remove(folder: Path) -> None:
    """Removes a tree, also where a command took the right to do so away from its folders."""
    for inner, _, _ in os.walk(folder):
        os.chmod(inner, stat.S_IRWXU)
    shutil.rmtree(folder)
