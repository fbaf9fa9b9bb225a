"""Process trees, as /proc shows them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import defaultdict
from collections.abc import Iterable

__all__ = ["children_of", "kill", "marked", "tree_of"]


def tree_of(root: int) -> set[int]:
    """The ids of all descendants of a process; orphans are children of the reaper that adopted them."""
    children: dict[int, list[int]] = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit() and (parent := _parent(int(name))) is not None:
            children[parent].append(int(name))
    found: set[int] = set()
    waiting = [root]
    while waiting:
        new = [pid for pid in children[waiting.pop()] if pid not in found]
        found.update(new)
        waiting += new
    return found


def children_of(pid: int) -> set[int]:
    """The direct children."""
    return {child for child in tree_of(pid) if _parent(child) == pid}


def marked(mark: str) -> set[int]:
    """The processes that have this NAME=value in the environment they were started with."""
    wanted = mark.encode()
    return {int(name) for name in os.listdir("/proc") if name.isdigit() and wanted in _environment(name)}


def kill(pids: Iterable[int]) -> None:
    """Stops them all first, so that none can fork away, then kills them; those already gone are fine."""
    pids = tuple(pids)
    for sent in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, sent)


def _environment(pid: str) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _parent(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name, in parentheses, may itself hold spaces and parentheses.
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None
