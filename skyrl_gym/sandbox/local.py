"""What the sandboxes of this machine have in common: commands as child processes, files by `cat`, an owner for each."""

from __future__ import annotations

import asyncio
import errno
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import PurePosixPath
from types import TracebackType
from typing import ClassVar, Self

from skyrl_gym.errors import SandboxError, SandboxLost
from skyrl_gym.sandbox.base import ExecResult, ExecStatus, SandboxSpec, Shell
from skyrl_gym.sandbox.ledger import Entry, Ledger
from skyrl_gym.sandbox.output import CappedOutput
from skyrl_gym.sandbox.running import Running, uninterrupted
from skyrl_gym.sandbox.shell import DRIVER_ENV, SHELL_COMMAND, PipeShell, RestartingShell

__all__ = ["PATH", "LocalSandbox"]

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START_TIMEOUT_S = 60.0
FILE_TIMEOUT_S = 60.0
MAX_ARGUMENT, MAX_ARGUMENTS = 131_071, 1_000_000  # bytes; the kernel's own bounds are these, or a little wider
# `sh` with the path as an argument of its own: a name that begins with a dash is still a name.
_READ = """
[ -d "$1" ] && exit 21
[ -e "$1" ] || exit 2
[ -f "$1" ] || { echo 'not a regular file' >&2; exit 1; }
[ -r "$1" ] || exit 13
exec head -c "$2" < "$1"
"""
_WRITE = '[ -d "$1" ] && exit 21; mkdir -p -- "$(dirname -- "$1")" && exec cat > "$1"'
_ERRORS: Mapping[int | None, tuple[type[OSError], str]] = {
    2: (FileNotFoundError, "no such file"),
    13: (PermissionError, "not readable"),
    21: (IsADirectoryError, "is a folder"),
}


class LocalSandbox(ABC):
    """A sandbox made of child processes. A backend says how it is built, how a command is started, and how it ends."""

    backend: ClassVar[str]

    def __init__(self, spec: SandboxSpec, ledger: Ledger) -> None:
        self.spec = spec
        self.capabilities: frozenset[str] = frozenset()
        self._ledger = ledger
        self._entry: Entry | None = None
        self._running: set[Running] = set()
        self._shell: RestartingShell | None = None
        self._closing: asyncio.Task[None] | None = None

    @abstractmethod
    async def _build(self, entry: Entry) -> None:
        """Makes the place; whatever it takes from the host is entered first."""

    @abstractmethod
    async def _spawn(self, command: Sequence[str], env: Mapping[str, str]) -> Running:
        """Starts a command with piped stdin and stdout, stderr joined to stdout."""

    @abstractmethod
    async def _demolish(self, entry: Entry) -> None:
        """Frees what the entry holds, as far as it was built; no command runs any more."""

    @abstractmethod
    def _died(self, code: int) -> bool:
        """Whether a command's exit status (negative: a signal) means that the sandbox is gone."""

    async def start(self) -> Self:
        """Builds it, and proves that a command runs.

        Raises:
            SandboxError: it can't be had, or not in time; nothing is left behind.
        """
        if self.spec.image is not None:
            raise SandboxError(f"the {self.backend} backend has no images, it shows this machine's /usr; image is None")
        self._entry = self._ledger.enter(self.backend)
        try:
            async with asyncio.timeout(START_TIMEOUT_S) as clock:
                await self._build(self._entry)
                tried = await self.exec(["true"], timeout_s=START_TIMEOUT_S)
            if tried.code != 0:
                raise SandboxError(f"a command does not start in the sandbox: {tried.text.strip()[-500:]}")
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError) and clock.expired():
                raise SandboxError(f"the sandbox was not ready within {START_TIMEOUT_S:g} s") from None
            if isinstance(error, OSError):
                raise SandboxError(f"can't make a {self.backend} sandbox: {error}") from error
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
        # By way of `sh`, a program that is not there is an ordinary failure, 127, in every backend.
        words = ["bash", "-c", command] if isinstance(command, str) else ["sh", "-c", 'exec "$@"', "sh", *command]
        # As bash does, without NULs; half of a surrogate pair is no character.
        arguments = [word.replace("\0", "").encode(errors="replace").decode() for word in words]
        began = time.monotonic()
        output = CappedOutput(max_bytes)
        status: ExecStatus = "ok"
        code: int | None = None
        sizes = [len(argument.encode()) for argument in arguments]
        if max(sizes) > MAX_ARGUMENT or sum(sizes) > MAX_ARGUMENTS:
            return ExecResult(b"Argument list too long: put it into a file, or give it as stdin", 126)
        async with self._begun(arguments, env or {}) as running:
            try:
                async with asyncio.timeout(timeout_s) as clock:
                    code = await running.communicate(stdin, output)
            except TimeoutError:
                if not clock.expired():
                    raise
                status = "timeout"
        if code is not None:
            self._check_open()
            if self._died(code):
                raise SandboxLost("the sandbox died while a command ran")
            code = code if code >= 0 else 128 - code
        return ExecResult(output.value(), code, status, time.monotonic() - began, output.dropped)

    async def shell(self) -> Shell:
        """The persistent shell."""
        self._check_open()
        self._shell = self._shell or RestartingShell(self._start_shell)
        await self._shell.start()
        return self._shell

    async def read(self, path: str | PurePosixPath, *, max_bytes: int = 16_777_216) -> bytes:
        """A file's bytes; see `Sandbox.read`."""
        command = ["sh", "-c", _READ, "sh", _name(path), str(max_bytes + 1)]
        result = await self.exec(command, timeout_s=FILE_TIMEOUT_S, max_bytes=2 * max_bytes + 2)
        _raise_for(result, path)
        if len(result.output) > max_bytes:
            raise SandboxError(f"{path} is larger than {max_bytes} bytes")
        return result.output

    async def write(self, path: str | PurePosixPath, data: bytes) -> None:
        """Writes a file; see `Sandbox.write`."""
        result = await self.exec(["sh", "-c", _WRITE, "sh", _name(path)], timeout_s=FILE_TIMEOUT_S, stdin=data)
        _raise_for(result, path)

    async def close(self) -> None:
        """Kills every process and frees everything; a caller's cancellation does not cut it short."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await uninterrupted(_result(self._closing))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _close(self) -> None:
        if self._entry is None:
            return
        try:
            await asyncio.gather(*(self._finish(running) for running in tuple(self._running)))
        finally:
            await self._demolish(self._entry)
        self._ledger.strike(self._entry)

    @asynccontextmanager
    async def _begun(self, command: Sequence[str], env: Mapping[str, str]) -> AsyncIterator[Running]:
        running = await self._begin(command, env)
        try:
            yield running
        finally:
            await uninterrupted(self._finish(running))

    async def _begin(self, command: Sequence[str], env: Mapping[str, str]) -> Running:
        self._check_open()
        starting = asyncio.ensure_future(self._started(command, env))
        try:
            running = await uninterrupted(starting)
        except asyncio.CancelledError:
            if starting.exception() is None:
                await uninterrupted(self._finish(starting.result()))
            raise
        if self._closing is not None:  # closed while it started
            await uninterrupted(self._finish(running))
            self._check_open()
        return running

    async def _started(self, command: Sequence[str], env: Mapping[str, str]) -> Running:
        try:
            running = await self._spawn(command, {**self.spec.env, **env})
        except OSError as error:  # not a file's: a caller of `read` must not take it for one
            raise SandboxError(f"can't start a process: {error}") from error
        self._running.add(running)
        return running

    async def _finish(self, running: Running) -> None:
        self._running.discard(running)
        await running.end()

    async def _start_shell(self) -> PipeShell:
        running = await self._begin(SHELL_COMMAND, DRIVER_ENV)
        return PipeShell(running.process, running.sweep, lambda: self._finish(running))

    def _check_open(self) -> None:
        if self._closing is not None or self._entry is None:
            raise SandboxLost("the sandbox has been closed")


async def _result(task: asyncio.Task[None]) -> None:
    await task


def _name(path: object) -> str:
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "a path holds no NUL", str(path))
    return str(path)


def _raise_for(result: ExecResult, path: object) -> None:
    if result.status == "timeout":
        raise SandboxError(f"reading or writing {path} took longer than {FILE_TIMEOUT_S:g} s")
    if result.code == 0:
        return
    text = result.text.strip()
    if result.code in _ERRORS:
        kind, text = _ERRORS[result.code]
    else:
        kind = PermissionError if "Permission denied" in text or "Read-only file system" in text else OSError
    raise kind(f"{text}: {path}")
