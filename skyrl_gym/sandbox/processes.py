"""Process trees, as /proc shows them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable

__all__ = [
    "alive",
    "children_of",
    "freeze",
    "inner_ids",
    "kill",
    "kill_below",
    "kill_tree",
    "kill_until_gone",
    "marked",
    "thaw",
    "tree_of",
]

STOP_S = 1.0
_PF_EXITING = 4
_LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # CONFIG_PROC_CHILDREN


def tree_of(root: int) -> set[int]:
    """The ids of all descendants of a process; orphans are children of the reaper that adopted them."""
    found: set[int] = set()
    waiting = [root]
    while waiting:
        new = children_of(waiting.pop()) - found
        found |= new
        waiting += new
    return found


def children_of(pid: int) -> set[int]:
    """The direct children. The kernel lists them by thread, which takes no look at all other processes."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return set()
    listed = b" ".join(_read(pid, f"task/{thread}/children") for thread in threads)
    if listed or _LISTS_CHILDREN:
        return set(map(int, listed.split()))
    return {child for child in _all() if (fields := _stat(child)) and int(fields[1]) == pid}


def marked(mark: str) -> set[int]:
    """The processes started with an environment that holds this text, a NAME=value or the beginning of one."""
    wanted = mark.encode()
    return {pid for pid in _all() if any(item.startswith(wanted) for item in _read(pid, "environ").split(b"\0"))}


def inner_ids(pid: int) -> tuple[int, ...]:
    """A process's ids, from our pid namespace to the innermost one that it is in; empty if it is gone."""
    for line in _read(pid, "status").splitlines():
        if line.startswith(b"NSpid:"):
            return tuple(map(int, line.split()[1:]))
    return ()


def alive(pid: int) -> bool:
    """It exists, and has neither ended nor begun to."""
    fields = _stat(pid)
    return bool(fields) and fields[0] not in (b"Z", b"X") and not int(fields[6]) & _PF_EXITING


def kill(pids: Iterable[int]) -> None:
    """Stops them all first, so that none can fork away, then kills them; those already gone are fine."""
    pids = tuple(pids)
    _send(signal.SIGSTOP, pids)
    _send(signal.SIGKILL, pids)


def freeze(find: Callable[[], set[int]]) -> set[int]:
    """Stops what `find` finds, until it finds nothing new: none of them can fork any more."""
    held: set[int] = set()
    while new := find() - held:
        _stop(new)
        held |= new
    return held


def thaw(pids: Iterable[int]) -> None:
    """Lets stopped processes go on."""
    _send(signal.SIGCONT, pids)


def kill_below(root: int) -> None:
    """Kills all descendants of a process, which can reap them; the process itself where it has none."""
    below = _freeze_tree(root) - {root}
    _send(signal.SIGKILL, below or {root})
    thaw({root})


def kill_tree(root: int) -> None:
    """Kills a process with all of its descendants."""
    _send(signal.SIGKILL, _freeze_tree(root))


def kill_until_gone(find: Callable[[], Collection[int]], *, limit_s: float = 1.0) -> None:
    """Kills what `find` finds, again and again: a fork bomb has children that the first look did not see."""
    until = time.monotonic() + limit_s
    while (found := [pid for pid in find() if alive(pid)]) and time.monotonic() < until:
        kill(found)
        time.sleep(0.002)


def _freeze_tree(root: int) -> set[int]:
    _stop({root})  # first: `nsenter` stops itself when it sees its child stopped
    return freeze(lambda: tree_of(root)) | {root}


def _stop(pids: Collection[int]) -> None:
    """Returns once they have stopped: a fork that is under way is finished first."""
    _send(signal.SIGSTOP, pids)
    until = time.monotonic() + STOP_S
    while any(_runs(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.0005)


def _runs(pid: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[0] not in (b"T", b"t", b"Z", b"X")


def _send(sent: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, sent)


def _all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _stat(pid: int) -> list[bytes]:
    """State, parent and so on; the name before them, in parentheses, may itself hold spaces and parentheses."""
    return _read(pid, "stat").rpartition(b")")[2].split()
