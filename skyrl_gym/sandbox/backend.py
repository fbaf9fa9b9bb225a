"""What the backends have in common: files by way of commands, snapshots, an owner for every process, an end."""

from __future__ import annotations

import asyncio
import errno
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import ClassVar, Self

from skyrl_gym.errors import ConfigError, SandboxError, SandboxLost
from skyrl_gym.sandbox.archives import pack, unpack
from skyrl_gym.sandbox.base import ExecResult, ExecStatus, SandboxSpec, Shell, Snapshot
from skyrl_gym.sandbox.ledger import Entry, Ledger
from skyrl_gym.sandbox.output import CappedOutput
from skyrl_gym.sandbox.running import Running, uninterrupted
from skyrl_gym.sandbox.shell import DRIVER_ENV, SHELL_COMMAND, PipeShell, RestartingShell

__all__ = ["PATH", "SandboxBackend", "fits"]

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
START_TIMEOUT_S = 60.0
FILE_TIMEOUT_S = 60.0
ARCHIVE_ROOM = 1_048_576  # for what an archive holds besides the files
MAX_ARGUMENT, MAX_ARGUMENTS = 131_071, 1_000_000  # bytes; the kernel's own bounds are these, or a little wider
# `sh` with the path as an argument of its own: a name that begins with a dash is still a name.
_READ = """
[ -d "$1" ] && exit 21
[ -e "$1" ] || exit 2
[ -f "$1" ] || { echo 'not a regular file' >&2; exit 1; }
[ -r "$1" ] || exit 13
exec head -c "$2" < "$1"
"""
# A failing `tar` says why, but in the middle of the archive.
_PACK = """
cd -- "$1" || exit 2
[ -e "$2" ] || [ -L "$2" ] || exit 2
tar -cf - "./$2" 2>/dev/null
[ $? -le 1 ] || exit 14
"""
_UNPACK = 'mkdir -p -- "$1" && cd -- "$1" && exec tar -xof -'
# Every program that is started costs more than the rest.
_WRITE = """
[ -d "$1" ] && exit 21
case $1 in */*) [ -d "${1%/*}/" ] || mkdir -p -- "${1%/*}/" || exit ;; esac
true >> "$1" || exit 1 # of a redirection of exec some shells die with the status of a missing file
exec cat > "$1"
"""
_ERRORS: Mapping[int | None, tuple[type[OSError], str]] = {
    2: (FileNotFoundError, "no such file"),
    13: (PermissionError, "not readable"),
    14: (PermissionError, "not all of it is readable"),
    21: (IsADirectoryError, "is a folder"),
}


class SandboxBackend(ABC):
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
    async def _build(self, entry: Entry, snapshot: Snapshot | None) -> None:
        """Makes the place, with a snapshot's files; whatever it takes from the host is entered first."""

    @abstractmethod
    async def _save(self) -> Snapshot:
        """The files as they are."""

    @abstractmethod
    async def _spawn(self, command: Sequence[str], env: Mapping[str, str], interactive: bool) -> Running:
        """Starts a command, stderr joined to its output; an interactive one is talked to through its `pipes`."""

    @abstractmethod
    async def _demolish(self, entry: Entry) -> None:
        """Frees what the entry holds, as far as it was built; no command runs any more."""

    @abstractmethod
    def _died(self, code: int) -> bool:
        """Whether a command's exit status (negative: a signal) means that the sandbox is gone."""

    async def start(self, snapshot: Snapshot | None = None) -> Self:
        """Builds it, with a snapshot's files if there is one, and proves that a command runs.

        Raises:
            ConfigError: the snapshot is of another kind of sandbox.
            SandboxError: it can't be had, or not in time; nothing is left behind.
        """
        if snapshot is not None:
            self.check_snapshot(snapshot)
        await self._prepare(snapshot)
        try:
            self._entry = self._ledger.enter(self.backend)
            async with asyncio.timeout(START_TIMEOUT_S) as clock:
                await self._build(self._entry, snapshot)
                shell = await self.shell()  # rather than by `exec`: it is what is mostly used next
                tried = await shell.run("true", timeout_s=START_TIMEOUT_S)
            if tried.code != 0:
                raise SandboxError(f"a command does not start in the sandbox: {tried.text.strip()[-500:]}")
            return self
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError) and clock.expired():
                raise SandboxError(f"the sandbox was not ready within {START_TIMEOUT_S:g} s") from None
            if isinstance(error, OSError):
                raise SandboxError(f"can't make a {self.backend} sandbox: {error}") from error
            raise

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
        # By way of a shell, a program that is not there is an ordinary failure, 127, in every backend.
        script = ["--", command] if isinstance(command, str) else ['exec -- "$@"', "bash", *command]
        words = ["bash", "-c", *script]
        # As bash does, without NULs; half of a surrogate pair is no character.
        arguments = [word.replace("\0", "").encode(errors="replace").decode() for word in words]
        began = time.monotonic()
        output = CappedOutput(max_bytes)
        status: ExecStatus = "ok"
        code: int | None = None
        if not fits(arguments):
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

    async def inspect(
        self,
        command: list[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        max_bytes: int = 1_048_576,
    ) -> ExecResult:
        """As `exec`, unless there is something quicker; see `Sandbox.inspect`."""
        return await self.exec(command, timeout_s=timeout_s, stdin=stdin, env=env, max_bytes=max_bytes)

    def layer(self, target: str) -> str | None:
        """None, unless a backend knows of one; see `Sandbox.layer`."""
        return None

    async def shell(self) -> Shell:
        """The persistent shell."""
        self._check_open()
        self._shell = self._shell or RestartingShell(self._start_shell, self._check_open)
        await self._shell.start()
        return self._shell

    async def read(self, path: str | PurePosixPath, *, max_bytes: int = 16_777_216) -> bytes:
        """A file's bytes; see `Sandbox.read`."""
        command = ["sh", "-c", _READ, "sh", _name(path), str(max_bytes + 1)]
        result = await self.inspect(command, timeout_s=FILE_TIMEOUT_S, max_bytes=2 * max_bytes + 2)
        _raise_for(result, path)
        if len(result.output) > max_bytes:
            raise SandboxError(f"{path} is larger than {max_bytes} bytes")
        return result.output

    async def write(self, path: str | PurePosixPath, data: bytes) -> None:
        """Writes a file; see `Sandbox.write`."""
        command = ["sh", "-c", _WRITE, "sh", _name(path)]
        _raise_for(await self.inspect(command, timeout_s=FILE_TIMEOUT_S, stdin=data), path)

    async def upload(self, source: Path, target: str | PurePosixPath, *, max_bytes: int = 268_435_456) -> None:
        """Copies a file or folder into the sandbox; see `Sandbox.upload`."""
        path = PurePosixPath(_name(target))
        folder, archive = await asyncio.to_thread(pack, source, path, max_bytes=max_bytes)
        command = ["sh", "-c", _UNPACK, "sh", str(folder)]
        _raise_for(await self.inspect(command, timeout_s=FILE_TIMEOUT_S, stdin=archive), target)

    async def download(self, source: str | PurePosixPath, target: Path, *, max_bytes: int = 268_435_456) -> None:
        """Copies a file or folder out of the sandbox; see `Sandbox.download`."""
        path = PurePosixPath(_name(source))
        folder, name = (path, ".") if path.name in ("", "..") else (path.parent, path.name)
        room = max_bytes + max_bytes // 4 + ARCHIVE_ROOM
        command = ["sh", "-c", _PACK, "sh", str(folder), name]
        result = await self.inspect(command, timeout_s=FILE_TIMEOUT_S, max_bytes=2 * room)
        _raise_for(result, source)
        if len(result.output) > room:
            raise SandboxError(f"{source} is larger than {max_bytes} bytes")
        await asyncio.to_thread(unpack, result.output, name, target, max_bytes=max_bytes)

    async def snapshot(self) -> Snapshot:
        """Its files as they are; see `Sandbox.snapshot`."""
        self._check_open()
        async with self._held_still():
            saving = asyncio.ensure_future(self._save())
            try:
                return await uninterrupted(saving)
            except asyncio.CancelledError:
                if saving.exception() is None:
                    await uninterrupted(saving.result().close())
                raise

    async def restore(self, snapshot: Snapshot) -> None:
        """Back to a snapshot; see `Sandbox.restore`."""
        self._check_open()
        self.check_snapshot(snapshot)
        await uninterrupted(self._rebuild(snapshot))

    async def fork(self) -> Self:
        """A second one with the same files; see `Sandbox.fork`."""
        async with await self.snapshot() as snapshot:
            return await type(self)(self.spec, self._ledger).start(snapshot)

    def check_snapshot(self, snapshot: Snapshot) -> None:
        """Refuses a snapshot that this sandbox can't have been taken from.

        Raises:
            ConfigError: the snapshot is closed, another backend's, or of a sandbox that was made differently.
        """
        if snapshot.closed:
            raise ConfigError("the snapshot has been closed")
        if snapshot.backend != self.backend:
            raise ConfigError(f"a {self.backend} sandbox can't be made from a {snapshot.backend} snapshot")
        if snapshot.spec != self.spec:
            raise ConfigError("the snapshot is of a sandbox with another specification; they have to be equal")

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
        await self._tear_down(self._entry)
        self._ledger.strike(self._entry)

    async def _tear_down(self, entry: Entry) -> None:
        try:
            await asyncio.gather(*(self._finish(running) for running in tuple(self._running)))
        finally:
            await self._demolish(entry)

    async def _rebuild(self, snapshot: Snapshot) -> None:
        assert self._entry is not None
        try:
            if self._shell is not None:
                await self._shell.end()
            await self._tear_down(self._entry)
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._build(self._entry, snapshot)
        except (SandboxError, OSError, TimeoutError) as error:
            await self.close()
            raise SandboxLost(f"the sandbox could not be rebuilt from the snapshot: {error}") from error

    @asynccontextmanager
    async def _held_still(self) -> AsyncIterator[None]:
        """Meanwhile no command writes."""
        held = tuple(self._running)
        await asyncio.gather(*(running.hold() for running in held))
        try:
            yield
        finally:
            await uninterrupted(asyncio.gather(*(running.go_on() for running in held)))

    @asynccontextmanager
    async def _begun(self, command: Sequence[str], env: Mapping[str, str]) -> AsyncIterator[Running]:
        running = await self._begin(command, env)
        try:
            yield running
        finally:
            await uninterrupted(self._finish(running))

    async def _begin(self, command: Sequence[str], env: Mapping[str, str], *, interactive: bool = False) -> Running:
        self._check_open()
        try:
            running = await uninterrupted(starting := asyncio.ensure_future(self._started(command, env, interactive)))
        except asyncio.CancelledError:
            if starting.exception() is None:
                await uninterrupted(self._finish(starting.result()))
            raise
        if self._closing is not None:  # closed while it started
            await uninterrupted(self._finish(running))
            self._check_open()
        return running

    async def _started(self, command: Sequence[str], env: Mapping[str, str], interactive: bool) -> Running:
        try:
            self._running.add(running := await self._spawn(command, {**self.spec.env, **env}, interactive))
        except OSError as error:  # not a file's: a caller of `read` must not take it for one
            raise SandboxError(f"can't start a process: {error}") from error
        return running

    async def _finish(self, running: Running) -> None:
        self._running.discard(running)
        await running.end()

    async def _start_shell(self) -> PipeShell:
        running = await self._begin(SHELL_COMMAND, DRIVER_ENV, interactive=True)
        return PipeShell(running.pipes, running.sweep, lambda: self._finish(running))

    async def _prepare(self, snapshot: Snapshot | None) -> None:
        """Checks the specification, and gets what takes longer than a start may."""
        if self.spec.image is not None:
            raise SandboxError(f"the {self.backend} backend has no images, it shows this machine's /usr; image is None")

    def _check_open(self) -> None:
        if self._closing is not None or self._entry is None:
            raise SandboxLost("the sandbox has been closed")


def fits(arguments: Sequence[str]) -> bool:
    """Whether the kernel takes them."""
    sizes = [len(argument.encode(errors="replace")) for argument in arguments]
    return max(sizes) <= MAX_ARGUMENT and sum(sizes) <= MAX_ARGUMENTS


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
