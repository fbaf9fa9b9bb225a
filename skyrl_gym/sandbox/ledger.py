"""The ledger: every sandbox is entered before it is made and struck out when it is gone."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from skyrl_gym.errors import SandboxError
from skyrl_gym.sandbox.processes import kill_tree, kill_until_gone, marked, tree_of

__all__ = ["Entry", "Ledger", "default_ledger"]


@dataclass(eq=False)
class Entry:
    """What one sandbox holds of the host.

    `pids` end everything when they are killed with their descendants; `mark` is in the environment of every
    process, where daemons leave the tree; `folders` are removed; `undo` removes what is held elsewhere. `owner` is
    the process that made it.
    """

    backend: str
    pids: set[int] = field(default_factory=set)
    mark: str = ""
    folders: list[Path] = field(default_factory=list)
    undo: Callable[[], None] | None = None
    owner: int = field(default_factory=os.getpid)

    def destroy(self) -> None:
        """Kills and removes all of it, without an event loop."""
        for pid in self.pids & tree_of(os.getpid()):  # the id of one that died may be somebody else's by now
            kill_tree(pid)
        if self.mark:
            kill_until_gone(partial(marked, self.mark))
        for folder in self.folders:
            _remove(folder)
        if self.undo is not None:
            self.undo()


class Ledger:
    """Counts sandboxes: `created` = `destroyed` + `live`, always."""

    def __init__(self) -> None:
        self.created = 0
        self.destroyed = 0
        self._entries: set[Entry] = set()
        self._lock = threading.Lock()

    @property
    def live(self) -> int:
        """How many exist now."""
        return len(self._entries)

    def enter(self, backend: str) -> Entry:
        """Before a sandbox is made."""
        entry = Entry(backend)
        with self._lock:
            self.created += 1
            self._entries.add(entry)
            _left_at_exit.add(entry)
        return entry

    def strike(self, entry: Entry) -> None:
        """Once it is gone; striking twice counts once."""
        with self._lock:
            if entry in self._entries:
                self._entries.remove(entry)
                _left_at_exit.discard(entry)
                self.destroyed += 1


_default = Ledger()
# What the interpreter takes along when it ends, whichever ledger it stands in.
_left_at_exit: set[Entry] = set()


def default_ledger() -> Ledger:
    """The process's ledger; a run that wants its own count passes its own."""
    return _default


@atexit.register
def _destroy_what_is_left() -> None:
    for entry in tuple(_left_at_exit):
        if entry.owner == os.getpid():  # a forked child leaves its parent's alone
            with contextlib.suppress(OSError, SandboxError):
                entry.destroy()


def _remove(folder: Path) -> None:
    """Removes a tree, also where a command took the right to do so away from its folders."""
    if not folder.exists():
        return
    folder.chmod(stat.S_IRWXU)
    for parent, folders, _ in os.walk(folder):
        for path in (Path(parent, name) for name in folders):
            if not path.is_symlink():
                path.chmod(stat.S_IRWXU)
    shutil.rmtree(folder)
