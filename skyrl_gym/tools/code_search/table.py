"""What is defined, called and mentioned where, in all files of a repository together."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import NamedTuple

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


def is_test(path: str) -> bool:
    """Whether a file is a test by the names of its folders and its own, whole names: `latest/` is none."""
    parts = PurePosixPath(path).parts
    return bool(_TEST_FOLDERS & set(parts[:-1])) or _TEST_FILE.fullmatch(parts[-1]) is not None


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
        return [path for path in self.paths if (source := self.source(path)) and wanted in source.data]

    def times(self, part: str) -> dict[str, int]:
        """How often words that are made of this part stand in which file."""
        shown = {path: count for path, count in self.base.words.times(part).items() if path not in self.hidden}
        return {**shown, **self.patch.words.times(part)}

    @cached_property
    def words_in_all(self) -> int:
        """How many words all files together hold."""
        hidden = sum(self.base.words.lengths[path] for path in self.hidden)
        return self.base.words.total - hidden + self.patch.words.total

    def words_in(self, path: str) -> int:
        """How many words a file holds."""
        known = self.patch if path in self.patch.files else self.base
        return known.words.lengths[path]

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
