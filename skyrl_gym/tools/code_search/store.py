"""Files once parsed, by what is in them, and tables once made: shared by all episodes of this process."""

from __future__ import annotations

import gc
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future
from functools import cache
from typing import NamedTuple

from skyrl_gym.tools.code_search.facts import FileFacts
from skyrl_gym.tools.code_search.languages import language_of
from skyrl_gym.tools.code_search.parsers import Parsers, default_parsers
from skyrl_gym.tools.code_search.table import Source, Table

__all__ = ["Read", "Store", "default_store", "uncollected"]

MAX_BYTES = 1 << 28
MAX_TABLES = 8


class _Uncollected:
    """Meanwhile Python does not look for cycles, of which facts have none: that would take as long as making them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._was_on = False

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._was_on = gc.isenabled()
                gc.disable()
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._was_on:
                gc.enable()


uncollected = _Uncollected()


def digest(data: bytes) -> str:
    """SHA-256, as `sha256sum` writes it."""
    return hashlib.sha256(data).hexdigest()


class Read(NamedTuple):
    """A file that has been read, with the digest of its bytes."""

    digest: str
    source: Source


class Store:
    """Keeps the sources used last, `max_bytes` of them together, and the last tables. Any thread may use it."""

    def __init__(self, parsers: Parsers, max_bytes: int = MAX_BYTES) -> None:
        self._parsers = parsers
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._sources: OrderedDict[tuple[str, str], Source] = OrderedDict()
        self._bytes = 0
        self._tables: OrderedDict[str, Future[Table]] = OrderedDict()

    def known(self, digests: Mapping[str, str]) -> dict[str, Source]:
        """The sources that are here, of files by path and digest."""
        with self._lock:
            keys = {path: (language_of(path) or "", held) for path, held in digests.items()}
            found = {path: self._sources[key] for path, key in keys.items() if key in self._sources}
            for path in found:
                self._sources.move_to_end(keys[path])
        return found

    def add(self, files: Mapping[str, bytes]) -> dict[str, Read]:
        """The sources of files by path, parsed unless they are here already. Blocks."""
        keys = {path: (language_of(path) or "", digest(data)) for path, data in files.items()}
        with self._lock:
            held = {key: self._sources[key] for key in keys.values() if key in self._sources}
        missing = {key: files[path] for path, key in keys.items() if key not in held}
        parsed = {key: data for key, data in missing.items() if key[0] and b"\0" not in data}
        facts = dict(zip(parsed, self._parsers.scan([(key[0], data) for key, data in parsed.items()]), strict=True))
        made = {key: Source(data, facts.get(key) or FileFacts(key[0])) for key, data in missing.items()}
        with self._lock:
            for key, source in made.items():
                if key not in self._sources:
                    self._sources[key] = source
                    self._bytes += len(source.data)
            while self._bytes > self._max_bytes and len(self._sources) > 1:
                _, old = self._sources.popitem(last=False)
                self._bytes -= len(old.data)
        return {path: Read(key[1], held.get(key) or made[key]) for path, key in keys.items()}

    def claim(self, key: str) -> tuple[Future[Table], bool]:
        """The table of a key, made or being made, and whether the caller is to make it: by `settle`, come what may."""
        with self._lock:
            future = self._tables.get(key)
            if future is not None:
                self._tables.move_to_end(key)
                return future, False
            future = self._tables[key] = Future()
            while len(self._tables) > MAX_TABLES:
                self._tables.popitem(last=False)
            return future, True

    def settle(self, key: str, future: Future[Table], table: Table | None) -> None:
        """What became of a claim: a table, or None for whoever waits to try himself."""
        if table is None:
            with self._lock:
                self._tables.pop(key, None)
            future.cancel()
        else:
            future.set_result(table)


@cache
def default_store() -> Store:
    """That of this process."""
    return Store(default_parsers())
