"""Control groups: limits for all processes of a sandbox together, where the kernel lets this process set them.

It does so for root outside of containers, and for whoever was given a subtree of the second version's hierarchy
("delegated", in systemd's words). The first version, still found on older machines, is used where it rules memory.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from skyrl_gym.sandbox.base import Limits
from skyrl_gym.sandbox.processes import alive

__all__ = ["ControlGroup", "Hierarchy", "hierarchy", "memberships", "mounts"]

MB = 1_048_576
PROCESS = Path("/proc/self")
PERIOD_US = 100_000
REMOVE_S = 1.0
_CONTROLLERS = ("memory", "cpu")
_JOIN = 'while [ "$1" != -- ]; do echo 0 > "$1" || exit; shift; done; shift; exec "$@"'
_OF_SWAP = ("memory.swap.max", "memory.memsw.limit_in_bytes")  # not there where the kernel doesn't account for it


@dataclass(frozen=True)
class ControlGroup:
    """The group of one sandbox. `folders` are those that stand for it, one for each hierarchy that it is in."""

    folders: tuple[Path, ...]
    held: frozenset[str]

    def joining(self, command: Sequence[str]) -> list[str]:
        """The command as one that begins in the group; it still needs the rights of the present user for that."""
        return ["sh", "-c", _JOIN, "sh", *(str(folder / "cgroup.procs") for folder in self.folders), "--", *command]

    def remove(self) -> None:
        """Removes it, its processes having been killed; one that does not die in time is left for a later sweep."""
        until = time.monotonic() + REMOVE_S
        for folder in self.folders:
            while not _removed(folder) and time.monotonic() < until:
                time.sleep(0.01)


@dataclass(frozen=True)
class Hierarchy:
    """Where groups are made: for each controller the folder below which this process may make them."""

    version: int
    parents: Mapping[str, Path]

    def group(self, limits: Limits) -> ControlGroup:
        """A group with these limits. Files in memory count as memory: their bound comes on top of that of processes.

        Raises:
            OSError: the kernel refuses one of them; nothing is left.
        """
        wanted = dict(self._settings(limits))
        name = f"skyrl-{os.getpid()}-{secrets.token_hex(4)}"
        folders = tuple(dict.fromkeys(self.parents[controller] / name for controller in wanted))
        group = ControlGroup(folders, frozenset(wanted))
        try:
            for folder in folders:
                folder.mkdir()
            for controller, settings in wanted.items():
                for file, value in settings.items():
                    path = self.parents[controller] / name / file
                    if file not in _OF_SWAP or path.exists():
                        path.write_text(value)
        except BaseException:
            group.remove()
            raise
        return group

    def folders(self) -> dict[Path, int]:
        """Those of the groups that stand there, and the process that made each."""
        found = (folder for parent in set(self.parents.values()) for folder in parent.glob("skyrl-*-*"))
        return {folder: int(folder.name.split("-")[1]) for folder in found}

    def sweep(self) -> None:
        """Removes the groups of processes that ended without doing so."""
        for folder, owner in self.folders().items():
            if not alive(owner):
                _removed(folder)

    def _settings(self, limits: Limits) -> Iterator[tuple[str, dict[str, str]]]:
        size = str((limits.memory_mb + limits.disk_mb) * MB)
        if self.version == 2:
            yield "memory", {"memory.max": size, "memory.swap.max": "0"}
        else:
            yield "memory", {"memory.limit_in_bytes": size, "memory.memsw.limit_in_bytes": size}
        if limits.cpus is not None and "cpu" in self.parents:
            quota = round(limits.cpus * PERIOD_US)
            one, two = {"cpu.cfs_quota_us": str(quota)}, {"cpu.max": f"{quota} {PERIOD_US}"}
            yield "cpu", two if self.version == 2 else one


@functools.cache
def hierarchy() -> Hierarchy | None:
    """Where this process may make groups that hold memory; None if nowhere. It is tried, once."""
    for found in (_second, _first):
        with contextlib.suppress(OSError, KeyError, ValueError):
            place = found()
            place.group(Limits(cpus=1.0)).remove()
            place.sweep()
            return place
    return None


def _second(process: Path = PROCESS) -> Hierarchy:
    mount = mounts(process)["cgroup2"]
    own = mount / memberships(process)[""].lstrip("/")
    given = next(filter(_delegated, (own, own.parent)), None)
    if given is None and not (_is_root(mount) and os.access(mount, os.W_OK)):
        raise OSError("no part of the hierarchy is this process's")
    offered = (given or mount).joinpath("cgroup.controllers").read_text().split()
    controllers = [name for name in _CONTROLLERS if name in offered]
    if "memory" not in controllers:
        raise OSError("memory is not ruled here")
    parent = given or mount / "skyrl"
    if given is None:
        parent.mkdir(exist_ok=True)
        _enable(mount, controllers)
    elif given == own:
        _empty(own)
    _enable(parent, controllers)
    return Hierarchy(2, dict.fromkeys(controllers, parent))


def _first(process: Path = PROCESS) -> Hierarchy:
    mounted, member_of = mounts(process), memberships(process)
    parents = {name: mounted[name] / member_of[name].lstrip("/") for name in _CONTROLLERS if name in mounted}
    return Hierarchy(1, {"memory": parents["memory"], **parents})


def _enable(folder: Path, controllers: Sequence[str]) -> None:
    (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))


def _empty(folder: Path) -> None:
    """A group whose controllers are given on has no processes of its own: they go to one below it."""
    (folder / "main").mkdir(exist_ok=True)
    for pid in (folder / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            (folder / "main" / "cgroup.procs").write_text(pid)


def _is_root(folder: Path) -> bool:
    """Whether it is the whole machine's, and not a container's: only there groups and processes may stand together."""
    return not (folder / "cgroup.type").exists()


def _delegated(folder: Path) -> bool:
    with contextlib.suppress(OSError):  # as systemd marks it; the second can only be seen by root
        marks = set(os.listxattr(folder)) & {"user.delegate", "trusted.delegate"}
        return any(os.getxattr(folder, mark) == b"1" for mark in marks)
    return False


def mounts(process: Path = PROCESS) -> dict[str, Path]:
    """Where each controller of the first version is mounted, and the whole second version; whole trees only."""
    found: dict[str, Path] = {}
    for line in (process / "mountinfo").read_text().splitlines():
        here, _, there = line.partition(" - ")
        (_, _, _, root, target, *_), (kind, _, options) = here.split(), there.split()
        if kind in ("cgroup", "cgroup2") and root == "/":
            for name in ("cgroup2",) if kind == "cgroup2" else options.split(","):
                found.setdefault(name, Path(target))
    return found


def memberships(process: Path = PROCESS) -> dict[str, str]:
    """This process's group for each controller of the first version, and for "" in the second."""
    lines = (line.split(":", 2) for line in (process / "cgroup").read_text().splitlines())
    return {name: str(PurePosixPath(group)) for _, names, group in lines for name in names.split(",")}


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
