"""Plain child processes: no isolation at all, and only when asked for by name.

A command can read and change whatever the user can, use the network, and see every process. For code that you
trust on a machine without bubblewrap. A daemon is found by a mark in its environment; one that was started with
an empty environment outlives the sandbox. Limits of memory, processes and disk are not held.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from skyrl_gym.errors import SandboxError
from skyrl_gym.sandbox.backend import PATH, SandboxBackend
from skyrl_gym.sandbox.base import Mount, Snapshot
from skyrl_gym.sandbox.children import spawn
from skyrl_gym.sandbox.ledger import Entry
from skyrl_gym.sandbox.processes import kill_until_gone, marked, tree_of
from skyrl_gym.sandbox.running import ChildProcess, Running, uninterrupted
from skyrl_gym.sandbox.snapshots import FileSnapshot

__all__ = ["ProcessSandbox", "UnsafeSandboxWarning"]

_MARK = "SKYRL_PROCESS"


class UnsafeSandboxWarning(UserWarning):
    """Commands run without isolation."""


class ProcessSandbox(SandboxBackend):
    """Commands run in a scratch folder, as the present user.

    `workdir` is that folder, whatever path the specification gives; a private mount there is copied into it. No
    other folder can be shown at another path than its own: such mounts are refused.
    """

    backend: ClassVar[str] = "process"
    _scratch: Path

    async def _build(self, entry: Entry, snapshot: Snapshot | None) -> None:
        for mount in self.spec.mounts:
            self._check_mount(mount)
        entry.mark = f"{_MARK}={secrets.token_hex(16)}"
        if entry.folders:  # restored, and to be found where it was
            self._scratch.mkdir(mode=0o700)
        else:
            entry.folders.append(Path(tempfile.mkdtemp(prefix="skyrl-")))
            self._scratch = entry.folders[0]
        await uninterrupted(asyncio.to_thread(self._fill, snapshot))  # else it would go on while all is removed
        self.capabilities = frozenset({"private:copy"})

    async def _save(self) -> FileSnapshot:
        command = ["tar", "-C", str(self._scratch), "-cf", "-", "work", "tmp"]
        return await asyncio.to_thread(FileSnapshot.taken, self.backend, self.spec, command, {"PATH": PATH})

    async def _spawn(self, command: Sequence[str], env: Mapping[str, str], interactive: bool) -> Running:
        assert self._entry is not None
        home, mark = str(self._scratch / "tmp"), f"{self._entry.mark}.{secrets.token_hex(8)}"
        name, _, value = mark.partition("=")
        everything = {"PATH": os.environ.get("PATH", PATH), "HOME": home, "TMPDIR": home, **env, name: value}
        return _Marked(await spawn(*command, env=everything, cwd=self._scratch / "work", session=True), mark)

    async def _demolish(self, entry: Entry) -> None:
        await asyncio.to_thread(entry.destroy)

    def _died(self, code: int) -> bool:
        return False

    def _check_mount(self, mount: Mount) -> None:
        if not Path(mount.source).is_dir():
            raise SandboxError(f"no such folder to mount: {mount.source}")
        shown = self.spec.workdir if mount.mode == "private" else mount.source
        if mount.target != shown:
            raise SandboxError(
                f"the process backend can't show {mount.source} ({mount.mode}) at {mount.target}, only at {shown}; "
                "use bubblewrap"
            )

    def _fill(self, snapshot: Snapshot | None) -> None:
        if isinstance(snapshot, FileSnapshot):
            snapshot.put(["tar", "-C", str(self._scratch), "-xpf", "-"], {"PATH": PATH})
            return
        for name in ("work", "tmp"):
            (self._scratch / name).mkdir()
        for mount in self.spec.mounts:
            if mount.mode == "private":
                shutil.copytree(mount.source, self._scratch / "work", symlinks=True, dirs_exist_ok=True)


@dataclass(eq=False)
class _Marked(ChildProcess):
    """A command and, found by the mark in their environment, also the daemons that left its tree."""

    mark: str

    def _supervisor(self) -> int:
        return self.process.pid

    def _started(self) -> set[int]:
        below = tree_of(self.process.pid) | {self.process.pid} if self.process.returncode is None else set()
        return below | marked(self.mark)

    async def _kill(self) -> None:
        await asyncio.to_thread(kill_until_gone, self._started)
