"""What is defined, called and mentioned where, in all files of a repository together."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from skyrl_gym.tools.code_search.facts import Definition, FileFacts
from skyrl_gym.tools.code_search.words import Names, Words, subwords

__all__ = ["Hit", "Index", "Source", "Table", "is_test", "module_parts"]

_TEST_FOLDERS = frozenset({"test", "tests", "testing", "__tests__"})
_TEST_FILE = re.compile(r"(test|tests|conftest)\.\w+|test_.*|.*_test\.\w+|.*\.(test|spec)\.\w+")
_BETWEEN = re.compile(r"[./:{}, ]+")


@dataclass(frozen=True, eq=False)
class Source:
    """A file's bytes, and what they say."""

    data: bytes
    facts: FileFacts

    @cached_property
    def lines(self) -> list[str]:
        """As `grep -n` counts them."""
        text = self.data.decode(errors="replace").removesuffix("\n")
        return [line.removesuffix("\r") for line in text.split("\n")] if text else []


class Hit(NamedTuple):
    """A definition in a file; `number` is its place among the file's definitions."""

    path: str
    number: int
    definition: Definition


def module_parts(module: str) -> list[str]:
    """The names that the name of a module is made of."""
    return [part for part in _BETWEEN.split(module) if part]


@lru_cache(1 << 16)
def is_test(path: str) -> bool:
    """Whether a file is a test by the names of its folders and its own, whole names: `latest/` is none."""
    *folders, name = path.split("/")
    return not _TEST_FOLDERS.isdisjoint(folders) or _TEST_FILE.fullmatch(name) is not None


class Table:
    """Files by path, and of each name where it is. It never changes, so that any number of episodes can share it."""

    def __init__(self, files: Mapping[str, Source]) -> None:
        self.files = dict(sorted(files.items()))
        self.names: dict[str, list[Hit]] = defaultdict(list)
        self.calls: dict[str, list[str]] = defaultdict(list)
        self.derived: dict[str, list[Hit]] = defaultdict(list)
        for path, source in self.files.items():
            for number, definition in enumerate(source.facts.definitions):
                hit = Hit(path, number, definition)
                self.names[definition.name].append(hit)
                for base in definition.bases:
                    self.derived[base.rpartition(".")[2]].append(hit)
            for name in source.facts.calls or ():
                self.calls[name].append(path)
        for made in (self.names, self.calls, self.derived):
            made.default_factory = None

    @cached_property
    def spellings(self) -> Names:
        """The names of definitions by how they are spelled."""
        return Names(self.names)

    @cached_property
    def imported(self) -> dict[str, list[str]]:
        """The files that import a name, or a module that has it in its own."""
        made: dict[str, dict[str, None]] = defaultdict(dict)
        for path, source in self.files.items():
            for item in source.facts.imports:
                for name in (*item.names, *module_parts(item.module)):
                    made[name][path] = None
        return {name: list(paths) for name, paths in made.items()}

    @cached_property
    def words(self) -> Words:
        """All that stands in the files."""
        return Words({path: source.data for path, source in self.files.items()})

    @cached_property
    def are_tests(self) -> npt.NDArray[np.bool_]:
        """Which of the files are tests, in their order."""
        return np.fromiter(map(is_test, self.files), np.bool_, len(self.files))


@dataclass(frozen=True)
class Index:
    """A table that is shared, and what is different in one episode: `hidden` of its files are gone or changed."""

    base: Table
    hidden: Set[str] = frozenset()
    patch: Table = field(default_factory=lambda: Table({}))

    @property
    def tables(self) -> tuple[Table, Table]:
        """Both; what is hidden is still in the first."""
        return self.base, self.patch

    @cached_property
    def shown(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Of the files of each table, in their order, which are not hidden."""
        base = (path not in self.hidden for path in self.base.files)
        return np.fromiter(base, np.bool_, len(self.base.files)), np.ones(len(self.patch.files), np.bool_)

    @cached_property
    def paths(self) -> list[str]:
        """All files, in order."""
        return sorted({*(path for path in self.base.files if path not in self.hidden), *self.patch.files})

    def source(self, path: str) -> Source | None:
        """A file, if it is a source file that can be read."""
        return self.patch.files.get(path) or (None if path in self.hidden else self.base.files.get(path))

    def file_named(self, name: str) -> str | None:
        """The path of a file by all of it or by its end; a pattern if that is the end of several."""
        if self.source(name) is not None:
            return name
        ending = [path for path in self.paths if path.endswith(f"/{name}")]
        return f"**/{name}" if len(ending) > 1 else next(iter(ending), None)

    def named(self, name: str) -> list[Hit]:
        """The definitions with exactly this name."""
        return [*self._shown_hits(self.base.names.get(name, ())), *self.patch.names.get(name, ())]

    def derived(self, name: str) -> list[Hit]:
        """The classes that name this one as a base."""
        return [*self._shown_hits(self.base.derived.get(name, ())), *self.patch.derived.get(name, ())]

    def calling(self, name: str) -> list[str]:
        """The files that call something of this name."""
        return self._shown(self.base.calls.get(name, ())) + self.patch.calls.get(name, [])

    def importing(self, name: str) -> list[str]:
        """The files that import something of this name, or from a module that has it in its own."""
        return self._shown(self.base.imported.get(name, ())) + self.patch.imported.get(name, [])

    def holding(self, text: str) -> list[str]:
        """The files in which a text stands."""
        wanted = text.encode(errors="surrogateescape")
        base, patch = ([path for path, source in table.files.items() if wanted in source.data] for table in self.tables)
        return sorted([*self._shown(base), *patch])

    def like(self, part: str) -> set[str]:
        """The names of definitions that hold a part or all its words; a few perhaps of files that are gone by now."""
        words = subwords(part)
        names = (table.spellings for table in self.tables)
        return {name for known in names for name in known.containing(part) | known.made_of(words)}

    def spelled(self, form: str) -> list[str]:
        """The names whose plain form this is."""
        known = (table.spellings.spelled.get(form, ()) for table in self.tables)
        return list(dict.fromkeys(name for names in known for name in names))

    def _shown(self, paths: Iterable[str]) -> list[str]:
        return [path for path in paths if path not in self.hidden]

    def _shown_hits(self, hits: Iterable[Hit]) -> Iterator[Hit]:
        return (hit for hit in hits if hit.path not in self.hidden)
