"""Results as text, in four levels of detail: complete, preview, fold and snippet; each ends with the next call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from skyrl_gym.tools.code_search.facts import NO_PARENT, Definition
from skyrl_gym.tools.code_search.relations import Site
from skyrl_gym.tools.code_search.repository import Match
from skyrl_gym.tools.code_search.table import Hit, Index, Source

__all__ = ["call", "code", "fold", "matches", "outline", "shown_hits", "sites"]

COMPLETE_LINES = 200
PREVIEW_LINES = 50
PREVIEWS = 3
FOLDED = 20
MAX_MEMBERS = 80
MAX_SIGNATURE = 160


def call(**arguments: object) -> str:
    """A call of the tool, as text."""
    return f"search({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def shown_hits(index: Index, hits: Sequence[Hit]) -> tuple[str, str]:
    """The hits in as much detail as their number allows, and the next call."""
    if len(hits) == 1:
        return _complete(index, hits[0])
    if len(hits) <= PREVIEWS:
        shown = "\n\n".join(_preview(index, hit) for hit in hits)
        return shown, f"Search one alone for all of it: {call(query=_address(hits[0]))}"
    lines = [fold(index, hit) for hit in hits[:FOLDED]]
    left = len(hits) - len(lines)
    more = f"; {left} more are not shown, name a folder or file with path=" if left else ""
    return "\n".join(lines), f"Search one for its code: {call(query=_address(hits[0]))}{more}"


def fold(index: Index, hit: Hit) -> str:
    """A definition in one line."""
    source = index.source(hit.path)
    return f"{_head(hit)}  {_signature(source, hit.definition)}" if source else _head(hit)


def code(source: Source, first: int, last: int) -> str:
    """Numbered lines."""
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(source.lines[first - 1 : last], first))


def outline(source: Source, parent: int = NO_PARENT, depth: int = 2) -> str:
    """What is defined in a file, or in one of its definitions: a line each, indented by what it lies in."""
    lines = list(_outlined(source, parent, depth, 0))
    left = len(lines) - MAX_MEMBERS * 2
    return "\n".join(lines[: MAX_MEMBERS * 2]) + (f"\n[{left} more]" if left > 0 else "")


def sites(found: Sequence[Site], limit: int = FOLDED * 2) -> str:
    """Lines that use something, by file."""
    rows = [
        (site.path, site.line, site.text + (f"   [in {site.inside}]" if site.inside else "")) for site in found[:limit]
    ]
    left = len(found) - limit
    return _by_file(rows) + (f"\n[{left} more places]" if left > 0 else "")


def matches(found: Sequence[Match], limit: int = FOLDED * 2) -> str:
    """Lines with a text, by file; of many files only how many lines each has."""
    if len(found) <= limit:
        return _by_file((match.path, match.line, match.text.strip()) for match in found)
    files = Counter(match.path for match in found)
    counted = [f"{path}: {count} lines" for path, count in list(files.items())[:limit]]
    left = len(files) - limit
    return "\n".join(counted) + (f"\n[{left} more files]" if left > 0 else "")


def _by_file(rows: Iterable[tuple[str, int, str]]) -> str:
    lines: list[str] = []
    for path, group in groupby(rows, key=lambda row: row[0]):
        lines += [path, *(f"{line:6}\t{text}" for _, line, text in group)]
    return "\n".join(lines)


def _complete(index: Index, hit: Hit) -> tuple[str, str]:
    source = index.source(hit.path)
    if source is None:
        return _head(hit), call(query=hit.path)
    definition = hit.definition
    if definition.length <= COMPLETE_LINES:
        next_ = f"Who uses it: {call(query=_address(hit), mode='callers')}"
        return f"{_head(hit)}\n{code(source, definition.first, definition.last)}", next_
    members = list(source.facts.members(hit.number))
    if members:
        one = source.facts.definitions[members[0]].qualified
        next_ = f"Search a member for its code: {call(query=f'{hit.path}:{one}')}"
        return f"{_head(hit)}\n{_skeleton(source, hit)}", next_
    end = definition.first + COMPLETE_LINES - 1
    rest = call(mode="code", path=hit.path, lines=[end + 1, min(definition.last, end + COMPLETE_LINES)])
    return f"{_head(hit)}\n{code(source, definition.first, end)}", f"The rest of it: {rest}"


def _preview(index: Index, hit: Hit) -> str:
    source = index.source(hit.path)
    if source is None:
        return _head(hit)
    if hit.definition.length <= PREVIEW_LINES:
        return f"{_head(hit)}\n{code(source, hit.definition.first, hit.definition.last)}"
    if any(True for _ in source.facts.members(hit.number)):
        return f"{_head(hit)}\n{_skeleton(source, hit)}"
    end = hit.definition.first + PREVIEW_LINES // 2
    left = hit.definition.last - end
    return f"{_head(hit)}\n{code(source, hit.definition.first, end)}\n[{left} more lines]"


def _skeleton(source: Source, hit: Hit) -> str:
    """A definition's first line and its members."""
    members = outline(source, hit.number, 1)
    return f"{code(source, hit.definition.first, hit.definition.first)}\n{members}"


def _outlined(source: Source, parent: int, depth: int, indent: int) -> Iterable[str]:
    for number in source.facts.members(parent):
        definition = source.facts.definitions[number]
        span = f"{definition.first}-{definition.last}"
        yield f"{span:>11}  {'  ' * indent}{_signature(source, definition)}"
        if depth > 1 and definition.kind not in ("function", "method"):
            yield from _outlined(source, number, depth - 1, indent + 1)


def _signature(source: Source, definition: Definition) -> str:
    """The line of a definition that names it, or the first."""
    lines = source.lines[definition.first - 1 : min(definition.last, definition.first + 20)]
    named = next((line for line in lines if definition.name in line and not line.lstrip().startswith(("@", "#"))), "")
    return (named or (lines[0] if lines else definition.name)).strip()[:MAX_SIGNATURE]


def _head(hit: Hit) -> str:
    definition = hit.definition
    lines = f"line {definition.first}" if definition.length == 1 else f"lines {definition.first}-{definition.last}"
    return f"{_address(hit)} ({definition.kind}, {lines})"


def _address(hit: Hit) -> str:
    return f"{hit.path}:{hit.definition.qualified}"
