"""Snapshots as archives in a file that has no name, and so goes with the process that holds it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import IO, Self

from skyrl_gym.errors import SandboxError
from skyrl_gym.sandbox.base import SandboxSpec

__all__ = ["FileSnapshot"]

_CHANGED = 1  # tar's status where a file changed while it was read


class FileSnapshot:
    """What `tar` packed; of the mounts in `overlaid` it holds the changes only."""

    def __init__(self, backend: str, spec: SandboxSpec, file: IO[bytes], overlaid: frozenset[int]) -> None:
        self.backend = backend
        self.spec = spec
        self.overlaid = overlaid
        self._file = file

    @classmethod
    def taken(
        cls,
        backend: str,
        spec: SandboxSpec,
        command: Sequence[str],
        env: Mapping[str, str],
        overlaid: frozenset[int] = frozenset(),
    ) -> FileSnapshot:
        """Runs a command that writes the archive to its stdout.

        Raises:
            SandboxError: it failed.
        """
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - the snapshot's, which closes it
        try:
            _run(command, env, stdout=file, accepted=(0, _CHANGED))
        except BaseException:
            file.close()
            raise
        return cls(backend, spec, file, overlaid)

    def put(
        self, command: Sequence[str], env: Mapping[str, str], *, started: Callable[[int], None] = lambda pid: None
    ) -> None:
        """Runs a command that reads the archive from its stdin.

        Raises:
            SandboxError: the command failed.
        """
        # An offset of its own: it may be put into several sandboxes at once.
        with open(f"/proc/self/fd/{self._file.fileno()}", "rb", buffering=0) as archive:
            _run(command, env, stdin=archive, accepted=(0,), started=started)

    @property
    def closed(self) -> bool:
        """Whether it has been freed."""
        return self._file.closed

    @property
    def size_bytes(self) -> int:
        """How much it holds."""
        return os.fstat(self._file.fileno()).st_size

    async def close(self) -> None:
        """Frees it."""
        self._file.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _run(
    command: Sequence[str],
    env: Mapping[str, str],
    *,
    stdin: IO[bytes] | int = subprocess.DEVNULL,
    stdout: IO[bytes] | int = subprocess.DEVNULL,
    accepted: Sequence[int],
    started: Callable[[int], None] = lambda pid: None,
) -> None:
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, env=env, stdin=stdin, stdout=stdout, stderr=errors)
        with process:
            started(process.pid)
        if process.returncode not in accepted:
            errors.seek(0)
            text = errors.read(2_000).decode(errors="replace").strip()
            raise SandboxError(f"a snapshot could not be taken or put back: {text or process.returncode}")
