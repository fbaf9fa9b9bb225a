"""Who calls whom, who imports what: answers from the facts of an index."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import NamedTuple

from skyrl_gym.tools.code_search.lookup import Query, within
from skyrl_gym.tools.code_search.table import Hit, Index, Source, is_test

__all__ = ["Site", "callees", "callers", "imported_by", "sites_of_import"]

MAX_FILES = 400


class Site(NamedTuple):
    """A line that uses a name, and the definition that the line is in ('' for the file itself)."""

    path: str
    line: int
    text: str
    inside: str


def callers(index: Index, query: Query, path: str | None, owners: Iterable[Hit] = ()) -> list[Site]:
    """Where something of this name is called: first where its file or class is known too, tests last.

    Of a method `Class.name` calls on `self` in classes that are neither it nor derived from it are left out.
    """
    family = _family(index, query.parts[-2]) if len(query.parts) > 1 else frozenset()
    known = {
        part for hit in owners for part in (*hit.definition.qualified.split(".")[:-1], PurePosixPath(hit.path).stem)
    }
    files = [file for file in index.calling(query.name) if within(file, path)]
    homes = {hit.path for hit in owners}

    def nearness(file: str) -> tuple[object, ...]:
        source = index.source(file)
        words = source.facts.frequencies if source and len(files) <= MAX_FILES else {}
        return is_test(file), file not in homes, not any(part in words for part in known), file

    sites = []
    for file in sorted(files, key=nearness):
        if (source := index.source(file)) is None:
            continue
        for line in dict.fromkeys(source.facts.lines_called(query.name)):
            site = _site(file, source, line)
            if not family or _receiver_fits(site, query.name, family):
                sites.append(site)
    return sites


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
    parts = PurePosixPath(path).with_suffix("").parts
    parts = parts[:-1] if parts[-1] in ("__init__", "index", "mod") else parts
    found = []
    for file in index.paths:
        source = index.source(file)
        for item in source.facts.imports if source else ():
            wanted = [
                part for part in re.split(r"[./:]+", item.module.strip("./")) if part not in ("js", "ts", "py", "h")
            ]
            relative = item.module.startswith(".") and wanted != [] and _beside(file, path)
            named = (
                wanted and parts[-len(wanted) :] == tuple(wanted) and (len(wanted) > 1 or relative or len(parts) == 1)
            )
            inner = [*wanted, *[name for name in item.names if name == parts[-1]]] if parts else []
            if named or (inner != wanted and tuple(inner) == parts[-len(inner) :] and (len(inner) > 1)):
                assert source is not None  # it has imports
                found.append(_site(file, source, item.line))
    return sorted(dict.fromkeys(found), key=lambda site: (is_test(site.path), site.path, site.line))


def sites_of_import(index: Index, name: str, path: str | None) -> list[Site]:
    """The imports that bring a name."""
    found = []
    for file in index.mentioning(name):
        source = index.source(file)
        for item in source.facts.imports if source and within(file, path) else ():
            if name in item.names or name in re.split(r"[./:{}, ]+", item.module):
                assert source is not None  # it has imports
                found.append(_site(file, source, item.line))
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


def _site(path: str, source: Source, line: int) -> Site:
    number = source.facts.at(line)
    inside = "" if number is None else source.facts.definitions[number].qualified
    text = source.lines[line - 1].strip() if line <= len(source.lines) else ""
    return Site(path, line, text[:200], inside)


def _beside(file: str, path: str) -> bool:
    return PurePosixPath(path).is_relative_to(PurePosixPath(file).parent) or PurePosixPath(file).parent.is_relative_to(
        PurePosixPath(path).parent
    )
