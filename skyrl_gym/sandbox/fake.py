"""A sandbox in memory: files in a dictionary, commands answered by a function. For tests of environments."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from types import TracebackType
from typing import Self

from skyrl_gym.errors import SandboxLost
from skyrl_gym.sandbox.base import ExecResult, SandboxSpec

__all__ = ["FakeSandbox"]


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
        return await self.run(command if isinstance(command, str) else " ".join(command), timeout_s=timeout_s)

    async def run(self, command: str, *, timeout_s: float, max_bytes: int = 65_536) -> ExecResult:
        """What `answer` says: the fake is its own shell."""
        self._use()
        self.commands.append(command)
        return self._answer(command)

    async def shell(self) -> Self:
        """Itself."""
        return self

    async def read(self, path: str | PurePosixPath, *, max_bytes: int = 16_777_216) -> bytes:
        """A file of the dictionary."""
        self._use()
        name = self._absolute(path)
        if name in self.files:
            return self.files[name]
        if any(other.startswith(f"{name}/") for other in self.files):
            raise IsADirectoryError(f"is a folder: {path}")
        raise FileNotFoundError(f"no such file: {path}")

    async def write(self, path: str | PurePosixPath, data: bytes) -> None:
        """Into the dictionary."""
        self._use()
        self.files[self._absolute(path)] = data

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
            raise SandboxLost("the fake sandbox was told to die")

    def _absolute(self, path: str | PurePosixPath) -> str:
        return posixpath.normpath(posixpath.join(self.spec.workdir, str(path)))
