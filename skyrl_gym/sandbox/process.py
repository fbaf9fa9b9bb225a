"""Plain child processes: no isolation at all, and only when asked for by name.

A command can read and change whatever the user can. For code that you trust on a machine without bubblewrap.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import ClassVar

from skyrl_gym.errors import SandboxError
from skyrl_gym.sandbox.local import PATH, LocalSandbox, Started

__all__ = ["ProcessSandbox", "UnsafeSandboxWarning"]


class UnsafeSandboxWarning(UserWarning):
    """Commands run without isolation."""


class ProcessSandbox(LocalSandbox):
    """Commands run in the scratch folder, as the present user. Targets of mounts other than `workdir` are refused."""

    backend: ClassVar[str] = "process"

    async def start(self) -> ProcessSandbox:
        """Makes the scratch folder.

        Raises:
            SandboxError: a mount would have to appear at a path of the host's.
        """
        for mount in self.spec.mounts:
            if mount.mode == "private" and mount.target != self.spec.workdir:
                raise SandboxError(f"the process backend can't show a folder at {mount.target}; use bubblewrap")
        await super().start()
        return self

    def _owner(self) -> int | None:
        return None

    async def _spawn(self, command: Sequence[str], env: Mapping[str, str]) -> Started:
        assert self._scratch is not None
        scratch_tmp = str(self._scratch / "tmp")
        name, token = "SKYRL_PROCESS", secrets.token_hex(16)
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=self._scratch / "work",
            env={"PATH": os.environ.get("PATH", PATH), "HOME": scratch_tmp, "TMPDIR": scratch_tmp, **env, name: token},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        return Started(process, process.pid, mark=f"{name}={token}")
