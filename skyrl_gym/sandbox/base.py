"""The sandbox protocol: one place where tools act, whatever is behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Literal, Protocol, Self, TypeAlias, runtime_checkable

__all__ = ["ExecResult", "ExecStatus", "Limits", "Mount", "Sandbox", "SandboxSpec", "Shell", "Snapshot"]

ExecStatus: TypeAlias = Literal["ok", "timeout", "output_limit", "shell_exited"]


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command did. A command that fails is an ordinary result; only a broken sandbox raises.

    `output` is stdout and stderr as they came, interleaved where the backend can; `code` is None when the
    command was killed because its time was up, and 128 + n when signal n ended it. `dropped_bytes` counts what
    the output cap left out. `restarted`: by the command, or since the one before it, the shell has been replaced;
    its variables, functions and working directory are lost (files are not).
    """

    output: bytes
    code: int | None
    status: ExecStatus = "ok"
    duration_s: float = 0.0
    dropped_bytes: int = 0
    restarted: bool = False

    @property
    def text(self) -> str:
        """The output as text; undecodable bytes shown as U+FFFD."""
        return self.output.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Mount:
    """A host folder that the sandbox sees at `target`.

    `private`: writable inside, the host's copy untouched. `read_only`: not writable.
    """

    source: str
    target: str
    mode: Literal["private", "read_only"] = "read_only"


@dataclass(frozen=True, slots=True)
class Limits:
    """Resources of one sandbox; a backend reports in `capabilities` which of them it can hold.

    `cpus`: how many at once, as many as there are unless given.
    """

    memory_mb: int = 2_048
    processes: int = 512
    disk_mb: int = 2_048
    cpus: float | None = None


@dataclass(frozen=True)
class SandboxSpec:
    """What a sandbox is made from. `env` is all the environment that its processes get, besides PATH and HOME.

    `image` is the container image whose files it has, for backends that have images.
    """

    mounts: tuple[Mount, ...] = ()
    workdir: str = "/work"
    env: Mapping[str, str] = field(default_factory=dict)
    network: bool = False
    limits: Limits = Limits()
    image: str | None = None


class Shell(Protocol):
    """A shell that keeps its working directory, variables and background jobs between commands."""

    async def run(self, command: str, *, timeout_s: float, max_bytes: int = 65_536) -> ExecResult:
        """Runs one command line; on a timeout its processes are killed and the shell goes on.

        Cancelling it ends the shell with all that it started; the next command gets a new one.

        Raises:
            SandboxLost: the sandbox died.
        """
        ...


class Snapshot(Protocol):
    """The files of a sandbox as they were at one moment: not its processes, nor its shell's variables.

    It outlives the sandbox, serves any number of new ones, and holds memory or disk until it is closed.
    """

    backend: str
    spec: SandboxSpec

    @property
    def closed(self) -> bool:
        """Whether it has been freed, and can't be used any more."""
        ...

    async def close(self) -> None:
        """Frees it; may be called twice."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class Sandbox(Protocol):
    """An isolated place with files and processes.

    Made by `skyrl_gym.sandbox.open_sandbox`, used as an async context manager. Paths are absolute or
    relative to `workdir`, and always resolved inside.
    """

    spec: SandboxSpec
    capabilities: frozenset[str]

    async def exec(
        self,
        command: str | list[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        max_bytes: int = 1_048_576,
    ) -> ExecResult:
        """Runs a command (a list as it is, text by `bash -c`) in a process of its own; what it started ends with it.

        It sees the same files and network as the shell; whether it sees the shell's processes is the backend's.

        Raises:
            SandboxLost: the sandbox died.
        """
        ...

    async def inspect(
        self,
        command: list[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        max_bytes: int = 1_048_576,
    ) -> ExecResult:
        """As `exec`, for a tool's own look at the files: by a process that is there already, if the backend has one.

        Raises:
            OSError: the sandbox's processes or memory are used up.
            SandboxLost: the sandbox died.
        """
        ...

    def layer(self, target: str) -> str | None:
        """Where `inspect` sees all that was written below the target of a private mount, and nothing else.

        None where that is not kept apart. What was removed stands there as a character device.
        """
        ...

    async def shell(self) -> Shell:
        """The sandbox's persistent shell, started on first use."""
        ...

    async def read(self, path: str | PurePosixPath, *, max_bytes: int = 16_777_216) -> bytes:
        """A file's bytes.

        Raises:
            OSError: as for a local file: FileNotFoundError, IsADirectoryError, PermissionError and so on.
            SandboxError: the file is larger than `max_bytes`.
        """
        ...

    async def write(self, path: str | PurePosixPath, data: bytes) -> None:
        """Writes a file, its parent folders made as needed; content never passes through an argument list.

        Raises:
            OSError: as for a local file.
        """
        ...

    async def upload(self, source: Path, target: str | PurePosixPath, *, max_bytes: int = 268_435_456) -> None:
        """Copies a file or folder of this machine's to a path inside; into a folder that is there, it is merged.

        Raises:
            OSError: as for a local copy.
            SandboxError: it is larger than `max_bytes`, or could not be unpacked inside.
        """
        ...

    async def download(self, source: str | PurePosixPath, target: Path, *, max_bytes: int = 268_435_456) -> None:
        """Copies a file or folder from inside to a path of this machine's that does not exist yet.

        What is inside is not trusted: a link that leads out of the copy, a device, or more than `max_bytes` is
        refused, and then `target` is not made at all.

        Raises:
            OSError: as for a local copy: FileNotFoundError, FileExistsError and so on.
            SandboxError: it was refused; the message names the member.
        """
        ...

    async def snapshot(self) -> Snapshot:
        """What its files are now; processes are held still meanwhile.

        Raises:
            SandboxLost: the sandbox died.
        """
        ...

    async def restore(self, snapshot: Snapshot) -> None:
        """Takes its files back to a snapshot of it or of one made alike; all processes end, its shell starts anew.

        Raises:
            ConfigError: the snapshot is another backend's, or of a sandbox that was made differently.
            SandboxLost: it could not be rebuilt, and is gone.
        """
        ...

    async def fork(self) -> Self:
        """A second sandbox with the same files, from now on independent; it is to be closed by itself.

        Raises:
            SandboxError: it can't be started.
        """
        ...

    async def close(self) -> None:
        """Kills every process and frees everything; may be called twice."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
