"""A sandbox in memory: files in a dictionary, commands answered by a function. For tests of environments."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self

from skyrl_gym.errors import ConfigError, SandboxError, SandboxLost
from skyrl_gym.sandbox.base import ExecResult, SandboxSpec, Snapshot
from skyrl_gym.sandbox.output import CappedOutput

__all__ = ["FakeSandbox"]


@dataclass(frozen=True)
class _FakeSnapshot:
    spec: SandboxSpec
    files: Mapping[str, bytes]
    backend: str = "fake"
    closed: bool = False

    async def close(self) -> None:
        """Nothing is held."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class FakeSandbox:
    """Implements `Sandbox` and its own `Shell`.

    Args:
        answer: gives the result of a command line; an empty success unless given.
        files: what is there at first, by absolute path.
        dies_at: the use (counted from 1) at which it is lost.
    """

    def __init__(
        self,
        answer: Callable[[str], ExecResult] = lambda command: ExecResult(b"", 0),
        *,
        files: Mapping[str, bytes] | None = None,
        spec: SandboxSpec | None = None,
        dies_at: int | None = None,
    ) -> None:
        self.spec = spec or SandboxSpec()
        self.capabilities: frozenset[str] = frozenset({"fake"})
        self.files = dict(files or {})
        self.commands: list[str] = []
        self.uses = 0
        self.closed = False
        self._answer = answer
        self._dies_at = dies_at

    async def exec(
        self,
        command: str | list[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        max_bytes: int = 1_048_576,
    ) -> ExecResult:
        """What `answer` says."""
        line = command if isinstance(command, str) else shlex.join(command)
        return await self.run(line, timeout_s=timeout_s, max_bytes=max_bytes)

    async def inspect(
        self,
        command: list[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        max_bytes: int = 1_048_576,
    ) -> ExecResult:
        """What `answer` says."""
        return await self.exec(command, timeout_s=timeout_s, max_bytes=max_bytes)

    def layer(self, target: str) -> str | None:
        """None: nothing is kept apart."""
        return None

    async def run(self, command: str, *, timeout_s: float, max_bytes: int = 65_536) -> ExecResult:
        """What `answer` says: the fake is its own shell."""
        self._use()
        self.commands.append(command)
        result = self._answer(command)
        output = CappedOutput(max_bytes)
        output.feed(result.output)
        return replace(result, output=output.value(), dropped_bytes=result.dropped_bytes + output.dropped)

    async def shell(self) -> Self:
        """Itself."""
        return self

    async def read(self, path: str | PurePosixPath, *, max_bytes: int = 16_777_216) -> bytes:
        """A file of the dictionary."""
        self._use()
        name = self._absolute(path)
        self._check_no_folder(name)
        if name not in self.files:
            raise FileNotFoundError(f"no such file: {path}")
        if len(self.files[name]) > max_bytes:
            raise SandboxError(f"{path} is larger than {max_bytes} bytes")
        return self.files[name]

    async def write(self, path: str | PurePosixPath, data: bytes) -> None:
        """Into the dictionary."""
        self._use()
        name = self._absolute(path)
        self._check_no_folder(name)
        self.files[name] = data

    async def upload(self, source: Path, target: str | PurePosixPath, *, max_bytes: int = 268_435_456) -> None:
        """A file, or a folder's, into the dictionary."""
        self._use()
        for path, data in _read_tree(source, max_bytes).items():
            self.files[self._absolute(PurePosixPath(target) / path)] = data

    async def download(self, source: str | PurePosixPath, target: Path, *, max_bytes: int = 268_435_456) -> None:
        """A file, or a folder's, out of the dictionary."""
        self._use()
        name = PurePosixPath(self._absolute(source))
        below = (path for path in map(PurePosixPath, self.files) if path.is_relative_to(name))
        files = {path.relative_to(name): self.files[str(path)] for path in below}
        if not files:
            raise FileNotFoundError(f"no such file: {source}")
        if sum(map(len, files.values())) > max_bytes:
            raise SandboxError(f"{source} is larger than {max_bytes} bytes")
        _write_tree(files, target)

    async def snapshot(self) -> _FakeSnapshot:
        """A copy of the dictionary."""
        self._use()
        return _FakeSnapshot(self.spec, dict(self.files))

    async def restore(self, snapshot: Snapshot) -> None:
        """The dictionary as it was."""
        self._use()
        if not isinstance(snapshot, _FakeSnapshot):
            raise ConfigError(f"a fake sandbox can't be made from a {snapshot.backend} snapshot")
        self.files = dict(snapshot.files)

    async def fork(self) -> Self:
        """Another with the same files and answers."""
        self._use()
        return type(self)(self._answer, files=self.files, spec=self.spec)

    async def close(self) -> None:
        """Marks it closed."""
        self.closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _use(self) -> None:
        self.uses += 1
        if self.closed or (self._dies_at is not None and self.uses >= self._dies_at):
            raise SandboxLost("the fake sandbox has been closed" if self.closed else "the fake sandbox was told to die")

    def _check_no_folder(self, name: str) -> None:
        if any(other.startswith(f"{name.rstrip('/')}/") for other in self.files):
            raise IsADirectoryError(f"is a folder: {name}")

    def _absolute(self, path: str | PurePosixPath) -> str:
        return posixpath.normpath(posixpath.join(self.spec.workdir, str(path)))


def _read_tree(source: Path, max_bytes: int) -> dict[PurePosixPath, bytes]:
    files = [source] if source.is_file() else [path for path in sorted(source.rglob("*")) if path.is_file()]
    if not source.exists():
        raise FileNotFoundError(f"no such file: {source}")
    if sum(path.stat().st_size for path in files) > max_bytes:
        raise SandboxError(f"{source} is larger than {max_bytes} bytes")
    return {PurePosixPath(path.relative_to(source)): path.read_bytes() for path in files}


def _write_tree(files: Mapping[PurePosixPath, bytes], target: Path) -> None:
    if target.exists():
        raise FileExistsError(f"something is there already: {target}")
    for path, data in files.items():
        place = target / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
