"""A sandbox in memory: files in a dictionary, commands answered by a function. For tests of environments."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from types import TracebackType
from typing import Self

from skyrl_gym.errors import SandboxError, SandboxLost
from skyrl_gym.sandbox.base import ExecResult, SandboxSpec
from skyrl_gym.sandbox.output import CappedOutput

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
        line = command if isinstance(command, str) else shlex.join(command)
        return await self.run(line, timeout_s=timeout_s, max_bytes=max_bytes)

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
