"""The ledger: every sandbox is entered before it is made and struck out when it is gone."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Entry", "Ledger", "default_ledger"]


@dataclass(eq=False)
class Entry:
    """What one sandbox holds of the host: process ids (of a process group or namespace init) and folders."""

    backend: str
    pids: list[int] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)


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
        return entry

    def strike(self, entry: Entry) -> None:
        """Once it is gone; striking twice counts once."""
        with self._lock:
            if entry in self._entries:
                self._entries.remove(entry)
                self.destroyed += 1

    def kill_all(self) -> None:
        """Kills and removes what is left; for the end of the interpreter, when no event loop runs any more."""
        for entry in tuple(self._entries):
            for pid in entry.pids:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            for folder in entry.folders:
                shutil.rmtree(folder, ignore_errors=True)
            self.strike(entry)


# One for the process, as `atexit` needs; a run that wants its own count passes its own.
_default = Ledger()
atexit.register(_default.kill_all)


def default_ledger() -> Ledger:
    """The process's ledger, emptied when the interpreter ends."""
    return _default
