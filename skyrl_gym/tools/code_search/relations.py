"""Who calls whom, who imports what: answers from the facts of an index."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from posixpath import basename, splitext

from skyrl_gym.tools.code_search.lookup import Query, within
from skyrl_gym.tools.code_search.table import Hit, Index, Source, is_test, module_parts

__all__ = ["Site", "callees", "callers", "imported_by", "sites_of_import"]

MAX_FILES = 400
SUFFIXES = ("js", "ts", "py", "h")  # of a file that is imported by its name


@dataclass(frozen=True)
class Site:
    """A line that uses a name."""

    path: str
    line: int
    source: Source

    @property
    def text(self) -> str:
        """The line."""
        lines = self.source.lines
        return lines[self.line - 1].strip()[:200] if self.line <= len(lines) else ""

    @property
    def inside(self) -> str:
        """The definition that the line is in; '' for the file itself."""
        number = self.source.facts.at(self.line)
        return "" if number is None else self.source.facts.definitions[number].qualified


def callers(index: Index, query: Query, path: str | None, owners: Sequence[Hit] = ()) -> list[Site]:
    """Where something of this name is called: first where its file or class is known too, tests last.

    Of a method `Class.name` calls on `self` in classes that are neither it nor derived from it are left out; of a
    function of a file, plain calls in files that have the name from elsewhere.
    """
    family = _family(index, query.parts[-2]) if len(query.parts) > 1 else frozenset()
    others = _others(index, query, owners)
    known = {
        part.encode(errors="surrogateescape")
        for hit in owners
        for part in (*hit.definition.qualified.split(".")[:-1], splitext(basename(hit.path))[0])
    }
    files = [file for file in index.calling(query.name) if within(file, path)]
    homes = {hit.path for hit in owners}

    def nearness(file: str) -> tuple[object, ...]:
        data = source.data if (source := index.source(file)) and len(files) <= MAX_FILES else b""
        return is_test(file), file not in homes, not any(part in data for part in known), file

    sites = []
    for file in sorted(files, key=nearness):
        if (source := index.source(file)) is None:
            continue
        from_elsewhere = file not in homes and _is_of(source, file, others) and not _is_of(source, file, owners)
        for line in dict.fromkeys(source.facts.lines_called(query.name)):
            site = Site(file, line, source)
            if family and not _receiver_fits(site, query.name, family):
                continue
            if not (from_elsewhere and re.search(rf"(?<![\w.]){re.escape(query.name)}\b", site.text)):
                sites.append(site)
    return sites


def _others(index: Index, query: Query, owners: Sequence[Hit]) -> list[Hit]:
    """The functions of files that have the name of one that was chosen, and are not it."""
    chosen = query.path is not None or len(query.parts) > 1
    if not chosen or any(hit.definition.parent >= 0 for hit in owners):
        return []
    return [hit for hit in index.named(query.name) if hit.definition.parent < 0 and hit not in owners]


def _is_of(source: Source, file: str, hits: Sequence[Hit]) -> bool:
    """Whether a file has one of these, all of one name: its own, or imported from where it is."""
    if any(hit.path == file for hit in hits):
        return True
    imports = [item for item in source.facts.imports if hits and hits[0].definition.name in item.names]
    return any(_is_module(item.module, file, _module(hit.path)) for item in imports for hit in hits)


def _receiver_fits(site: Site, name: str, family: frozenset[str]) -> bool:
    """Whether a call could be of a method of the family, by what it is called on."""
    on_self = re.search(rf"\b(?:self|cls|this)\s*(?:\.|->)\s*{re.escape(name)}\b", site.text)
    return on_self is None or any(part in family for part in site.inside.split("."))


def callees(index: Index, hit: Hit) -> list[tuple[str, int, list[Hit]]]:
    """What a definition calls, by name and first line, each with the definitions that it may be: the nearest first."""
    source = index.source(hit.path)
    if source is None:
        return []
    inside = range(hit.definition.first, hit.definition.last + 1)
    first: dict[str, int] = {}
    for name, lines in (source.facts.calls or {}).items():
        at = next((line for line in lines if line in inside), None)
        if at is not None:
            first[name] = at
    imported = {name: item.module for item in source.facts.imports for name in item.names}
    own = hit.definition.qualified.split(".")[0]

    def nearness(found: Hit) -> tuple[object, ...]:
        module = imported.get(found.definition.name, "").strip(".").replace(".", "/")
        same_class = found.path == hit.path and found.definition.qualified.split(".")[0] == own
        comes = bool(module) and module in found.path
        return not same_class, found.path != hit.path, not comes, is_test(found.path), found.path

    calls = sorted(first.items(), key=lambda item: item[1])
    return [(name, line, sorted(index.named(name), key=nearness)) for name, line in calls]


def imported_by(index: Index, path: str) -> list[Site]:
    """The imports that mean a file, as far as the end of a module's name tells."""
    module = _module(path)
    found = []
    for file in index.importing(module[-1]) if module else ():
        source = index.source(file)
        for item in source.facts.imports if source else ():
            inner = module[-1] in item.names and _is_module(item.module, file, module, module[-1])
            if inner or _is_module(item.module, file, module):
                assert source is not None  # it has imports
                found.append(Site(file, item.line, source))
    return _in_order(found)


def _module(path: str) -> tuple[str, ...]:
    """The folders of a file and its name, unless it stands for its folder."""
    *folders, file = path.split("/")
    parts = (*folders, file.rpartition(".")[0] or file)
    return parts[:-1] if parts[-1] in ("__init__", "index", "mod") else parts


def _is_module(named: str, file: str, module: tuple[str, ...], *inner: str) -> bool:
    """Whether a module's name in a file, and a name from within it, could mean a module: a relative one tells all."""
    parts = (*(part for part in module_parts(named) if part not in SUFFIXES), *inner)
    if named.startswith("."):
        up = named.split("/").count("..") if "/" in named else len(named) - len(named.lstrip(".")) - 1
        folder = file.split("/")[:-1]
        return (*folder[: len(folder) - up], *parts) == module
    return parts != () and module[-len(parts) :] == parts and (len(parts) > 1 or len(module) == 1)


def sites_of_import(index: Index, name: str, path: str | None) -> list[Site]:
    """The imports that bring a name."""
    found = []
    for file in index.importing(name):
        source = index.source(file)
        for item in source.facts.imports if source and within(file, path) else ():
            if name in item.names or name in module_parts(item.module):
                assert source is not None  # it has imports
                found.append(Site(file, item.line, source))
    return _in_order(found)


def _in_order(found: Iterable[Site]) -> list[Site]:
    return sorted(dict.fromkeys(found), key=lambda site: (is_test(site.path), site.path, site.line))


def _family(index: Index, name: str) -> frozenset[str]:
    """A class, those derived from it, and those that it is derived from."""
    down, up = {name}, {name}
    todo = [name]
    while todo:
        fresh = {hit.definition.name for hit in index.derived(todo.pop())} - down
        down |= fresh
        todo += fresh
    todo = [name]
    while todo:
        bases = {base.rpartition(".")[2] for hit in index.named(todo.pop()) for base in hit.definition.bases} - up
        up |= bases
        todo += bases
    return frozenset(down | up)
