"""The index of one episode's repository: what is shared with others, and what has changed since."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping

from skyrl_gym.tools.code_search.listing import Listing
from skyrl_gym.tools.code_search.repository import Repository
from skyrl_gym.tools.code_search.store import Read, Store, uncollected
from skyrl_gym.tools.code_search.table import Index, Table

__all__ = ["Tracker"]

THREADS = 4


class Tracker:
    """Follows a repository: every look at it looks at the files again, and reads those that have changed.

    The first look asks for the digests of all files, so that what another episode has read is not read again.
    """

    def __init__(self, repository: Repository, store: Store) -> None:
        self.repository = repository
        self._store = store
        self._lock = asyncio.Lock()
        self._listing: Listing | None = None
        self._index: Index | None = None

    def moved(self, repository: Repository) -> Tracker:
        """Of a copy of the repository elsewhere, whose files may have other change times: they are looked at again."""
        return Tracker(repository, self._store)

    async def index(self) -> Index:
        """The index of the files as they are now.

        Raises:
            ToolError: they can't be listed or read in time.
            MissingDependency: a grammar is not installed.
        """
        async with self._lock:
            listing = await self.repository.listing(self._listing)
            if self._index is None or self._listing is None:
                self._index = Index(await self._shared_table(listing.sources))
            elif listing is not self._listing and listing.sources != self._listing.sources:
                self._index = await self._changed(self._index, self._listing.sources, listing.sources)
            self._listing = listing
            return self._index

    async def _shared_table(self, stamps: Mapping[str, str]) -> Table:
        digests = await self.repository.digests(stamps)
        listed = "\0".join(f"{path}\0{digests.get(path)}" for path in sorted(stamps))
        key = hashlib.sha256(listed.encode(errors="surrogateescape")).hexdigest()
        while True:
            future, is_mine = self._store.claim(key)
            if not is_mine:
                try:
                    return await asyncio.shield(asyncio.wrap_future(future))
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if not future.cancelled() or (task is not None and task.cancelling()):
                        raise
                    continue
            shared = None
            try:
                with uncollected:
                    table, is_as_said = await self._table(digests)
                shared = table if is_as_said else None
                return table
            finally:
                self._store.settle(key, future, shared)

    async def _table(self, digests: Mapping[str, str]) -> tuple[Table, bool]:
        """Of files by their digests, and whether they have these: their place is the agent's, and may say anything."""
        held = self._store.known(digests)
        read = await self._read([path for path in digests if path not in held])
        made = {**held, **{path: item.source for path, item in read.items()}}
        is_as_said = made.keys() == digests.keys() and all(item.digest == digests[path] for path, item in read.items())
        return await asyncio.to_thread(Table, made), is_as_said

    async def _read(self, paths: list[str]) -> dict[str, Read]:
        data = await self.repository.read(paths) if paths else {}
        wanted = [path for path in paths if path in data]

        def add(part: list[str]) -> dict[str, Read]:
            return self._store.add({path: data[path] for path in part})

        parts = [wanted[start::THREADS] for start in range(THREADS)] if len(wanted) > THREADS else [wanted]
        made = await asyncio.gather(*(asyncio.to_thread(add, part) for part in parts))
        return {path: read for part in made for path, read in part.items()}

    async def _changed(self, index: Index, old: Mapping[str, str], new: Mapping[str, str]) -> Index:
        gone = [path for path in old if path not in new]
        changed = [path for path, stamp in new.items() if old.get(path) != stamp]
        read = {path: item.source for path, item in (await self._read(changed)).items()}
        same = {path for path, held in read.items() if (was := index.source(path)) and was.data == held.data}
        fresh = {path: source for path, source in read.items() if path not in same}
        touched = {*gone, *changed} - same
        if not touched:
            return index
        kept = {path: source for path, source in index.patch.files.items() if path not in touched}
        patch = await asyncio.to_thread(Table, {**kept, **fresh})
        return Index(index.base, index.hidden | (touched & index.base.files.keys()), patch)
