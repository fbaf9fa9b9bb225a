"""Where an agent works on a repository: a tree in a sandbox of our own, or a container of the data set's image."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Protocol

from skyrl_gym.envs.swe.changes import Changes, changes_of, read_back
from skyrl_gym.envs.swe.container import open_container
from skyrl_gym.envs.swe.instance import Instance
from skyrl_gym.envs.swe.packages import PYTHON_ENV, Runtime, runtime
from skyrl_gym.envs.swe.trees import REPOSITORY, base_tree
from skyrl_gym.sandbox import Mount, Sandbox, SandboxPool, SandboxSpec

__all__ = ["Workplace", "open_workplace"]


class Workplace(Protocol):
    """A sandbox with a repository in it."""

    @property
    def box(self) -> Sandbox:
        """The sandbox; whoever opened the workplace closes it."""
        ...

    @property
    def repository(self) -> str:
        """The repository's folder."""
        ...

    @property
    def python(self) -> str | None:
        """The interpreter that runs the repository's code, if it has one."""
        ...

    def moved(self, box: Sandbox) -> Workplace:
        """The same in another sandbox, a copy of this one."""
        ...

    async def changes(self) -> Changes | None:
        """What has been changed; None when the repository can't be read back.

        Raises:
            GradeError: reading did not end in time.
        """
        ...


async def open_workplace(instance: Instance, pool: SandboxPool) -> Workplace:
    """The place to repair a task's repository, in a sandbox from the pool.

    Raises:
        SetupError: it can't be prepared.
        SandboxError: it can't be opened.
        TaskError: the row doesn't fit its source.
    """
    if instance.image:
        return await open_container(instance, pool)
    tree = await asyncio.to_thread(base_tree, instance)
    needed = await asyncio.to_thread(runtime, instance)
    return _Local(tree, await pool.take(_spec(instance, tree, needed)), needed.python)


@dataclass(frozen=True)
class _Local:
    tree: Path
    box: Sandbox
    python: str
    repository: str = REPOSITORY

    def moved(self, box: Sandbox) -> _Local:
        return replace(self, box=box)

    async def changes(self) -> Changes | None:
        held = await read_back(self.box, self.repository)
        return None if held is None else await asyncio.to_thread(changes_of, self.tree, held)


def _spec(instance: Instance, tree: Path, needed: Runtime) -> SandboxSpec:
    code = str(PurePosixPath(REPOSITORY) / instance.python_path)
    return SandboxSpec(
        mounts=(Mount(str(tree), REPOSITORY, "private"), *needed.mounts),
        workdir=REPOSITORY,
        env={**PYTHON_ENV, "PYTHONPATH": ":".join([*needed.paths, code])},
    )
