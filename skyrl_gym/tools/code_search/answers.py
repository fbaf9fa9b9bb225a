"""What an index answers to a question, as text: no file is looked at here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from skyrl_gym.errors import ToolError
from skyrl_gym.tools.code_search import show
from skyrl_gym.tools.code_search.bm25 import bm25
from skyrl_gym.tools.code_search.lookup import Found, Query, find, near_names, read_query, within
from skyrl_gym.tools.code_search.relations import callees, callers, imported_by, sites_of_import
from skyrl_gym.tools.code_search.table import Hit, Index, Source

__all__ = ["AROUND", "Mode", "answer", "by_words"]

Mode: TypeAlias = Literal["find", "callers", "callees", "imports", "outline", "code", "text"]
AROUND = 15
MAX_CODE_LINES = 400
HEADS = {
    "exact": "{count} definitions of {name}:",
    "inherited": "{name} is inherited; where it is defined:",
    "spelling": "{name} is spelled otherwise ({count}):",
    "partial": "Nothing is named {name}; names that hold it or its words ({count}):",
    "similar": "Nothing is named {name}. The most similar names:",
}


def answer(index: Index, query: str, mode: Mode, path: str | None, lines: list[int] | None) -> str | None:
    """What an index says; None when it knows of nothing like it.

    Raises:
        ToolError: the question is not one.
    """
    if mode == "code":
        return _code(index, path or query, lines)
    if not query.strip():
        if mode == "outline":
            return _outline(index, path or ".")
        if path is None:
            raise ToolError("query is a name (Class.method, module.function), a file, or file:name.")
        query = path
    asked = read_query(query, index.file_named)
    if asked.line is not None and asked.path is not None:
        return _at_line(index, asked.path, asked.line)
    if mode == "imports":
        return _imports(index, asked, path)
    if not asked.name:
        return _outline(index, asked.path or path or query)
    return _of_name(index, asked, mode, path)


def _of_name(index: Index, asked: Query, mode: Mode, path: str | None) -> str | None:
    where = asked.path or path
    found = find(index, asked, where)
    if mode == "callers":
        return _callers(index, asked, path, found)
    if found is None:
        return _elsewhere(index, asked, where) if where else None
    if mode == "callees":
        return _callees(index, found)
    return _outline_of(index, found) if mode == "outline" else _found(index, asked, found)


def _found(index: Index, asked: Query, found: Found) -> str:
    hits = found.hits
    text, next_ = show.shown_hits(index, hits)
    name = ".".join(asked.parts)
    head = (
        "1 definition:"
        if len(hits) == 1 and found.how == "exact"
        else HEADS[found.how].format(count=len(hits), name=name)
    )
    return f"{head}\n{text}\nNext: {next_}"


def _elsewhere(index: Index, asked: Query, where: str) -> str | None:
    """A name that is not where it was looked for, but somewhere."""
    if not any(within(path, where) for path in index.paths):
        near = [path for path in index.paths if path.endswith(where.rsplit("/", 1)[-1])][:5]
        hint = f" Files of that name: {', '.join(near)}." if near else ""
        return f"There is no source file {where!r}.{hint}\nNext: {show.call(query='.'.join(asked.parts))} without path"
    found = find(index, asked, None)
    if found is None or found.how in ("partial", "similar"):
        return None
    lines = "\n".join(show.fold(index, hit) for hit in found.hits[: show.FOLDED])
    return f"{'.'.join(asked.parts)} is not defined in {where}, but here:\n{lines}\nNext: {_one(found.hits[0])}"


def _callers(index: Index, asked: Query, path: str | None, found: Found | None) -> str | None:
    owners = found.hits if found and found.how in ("exact", "inherited") else ()
    used = callers(index, asked, path, owners)
    name = ".".join(asked.parts)
    if not used:
        if not owners:
            return None
        mentions = len(index.holding(asked.name))
        text = f"It stands in {mentions} files: {show.call(query=asked.name, mode='text')}"
        return f"{name} is defined in {owners[0].path}, but nothing calls it by name.\nNext: {text}"
    files = len({site.path for site in used})
    first = f"{used[0].path}:{used[0].inside}" if used[0].inside else f"{used[0].path}:{used[0].line}"
    return f"{len(used)} calls of {name} in {files} files:\n{show.sites(used)}\nNext: {show.call(query=first)}"


def _callees(index: Index, found: Found) -> str:
    hit = found.hits[0]
    lines = []
    for name, line, defined in callees(index, hit):
        first = f"{defined[0].path}:{defined[0].definition.qualified}" if defined else "not defined here"
        more = f" (or {len(defined) - 1} others)" if len(defined) > 1 else ""
        lines.append(f"{line:6}\t{name}: {first}{more}")
    address = f"{hit.path}:{hit.definition.qualified}"
    if not lines:
        return f"{address} calls nothing by name.\nNext: {_one(hit)}"
    others = f"\n[{len(found.hits) - 1} other definitions fit: name the file]" if len(found.hits) > 1 else ""
    shown = "\n".join(lines[: show.MAX_MEMBERS])
    return f"{address} calls, by the line of the first call:\n{shown}{others}\nNext: {_one(hit)}"


def _imports(index: Index, asked: Query, path: str | None) -> str | None:
    if asked.parts:
        used = sites_of_import(index, asked.name, asked.path or path)
        if not used:
            return _not_imported(index, asked)
        next_ = show.call(query=asked.name, mode="callers")
        return f"{len(used)} imports of {asked.name}:\n{show.sites(used)}\nNext: {next_}"
    file = asked.path or ""
    source = index.source(file)
    if source is None:
        return _outline(index, file) if file else None
    own = [
        f"{item.line:6}\t{item.module}{': ' + ', '.join(item.names) if item.names else ''}"
        for item in source.facts.imports
    ]
    others = imported_by(index, file)
    mine = "\n".join(own[: show.MAX_MEMBERS]) or "nothing"
    theirs = show.sites(others) or "no file, as far as names tell"
    return f"{file} imports:\n{mine}\nIt is imported by:\n{theirs}\nNext: {show.call(query=file, mode='outline')}"


def _not_imported(index: Index, asked: Query) -> str | None:
    found = find(index, asked, None)
    if found is None or found.how != "exact":
        return None
    hit = found.hits[0]
    next_ = show.call(query=hit.path, mode="imports")
    return f"{asked.name} is defined in {hit.path}, but no import names it.\nNext: {next_} shows who imports the file"


def _outline(index: Index, path: str) -> str | None:
    """Of a file, or of the files below a folder."""
    source = index.source(path)
    if source is not None:
        next_ = f"Search one for its code: {show.call(query=path + ':NAME')}"
        head = f"{path}: {len(source.lines)} lines, {source.facts.language}"
        return f"{head}\n{show.outline(source) or 'It defines nothing.'}\nNext: {next_}"
    below = [file for file in index.paths if within(file, path)]
    if not below:
        return None
    shown = [f"{file}: {_top(index.source(file))}" for file in below[: show.MAX_MEMBERS]]
    left = len(below) - len(shown)
    more = f"\n[{left} more files]" if left else ""
    return (
        f"{len(below)} source files in {path}:\n"
        + "\n".join(shown)
        + f"{more}\nNext: {show.call(query=below[0], mode='outline')}"
    )


def _top(source: Source | None) -> str:
    names = [definition.name for definition in (source.facts.definitions if source else ()) if definition.parent < 0]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") or "-"


def _outline_of(index: Index, found: Found) -> str:
    hit = found.hits[0]
    source = index.source(hit.path)
    members = show.outline(source, hit.number) if source else ""
    next_ = _one(hit)
    return f"{show.fold(index, hit)}\n{members or 'Nothing is defined in it.'}\nNext: {next_}"


def _code(index: Index, path: str, lines: list[int] | None) -> str:
    source = index.source(path)
    if source is None:
        near = [file for file in index.paths if file.endswith("/" + path.rsplit("/", 1)[-1])][:5]
        hint = f" Did you mean {', '.join(near)}?" if near else " mode='text' finds other files."
        raise ToolError(f"There is no source file {path!r}.{hint}")
    if not lines or len(lines) > 2 or lines[0] < 1 or lines[-1] < lines[0]:
        raise ToolError(f"mode='code' needs lines=[first, last], counted from 1; got {lines}.")
    first, last = lines[0], min(lines[-1], len(source.lines), lines[0] + MAX_CODE_LINES - 1)
    if first > len(source.lines):
        raise ToolError(f"{path} has {len(source.lines)} lines; there is no line {first}.")
    around = _around(source, first)
    next_ = show.call(query=f"{path}:{around}") if around else show.call(query=path, mode="outline")
    inside = f", in {around}" if around else ""
    return f"{path}, lines {first}-{last}{inside}\n{show.code(source, first, last)}\nNext: {next_}"


def _at_line(index: Index, path: str, line: int) -> str:
    source = index.source(path)
    number = source.facts.at(line) if source else None
    if source is None or number is None or source.facts.definitions[number].length > show.COMPLETE_LINES:
        return _code(index, path, [max(1, line - AROUND), line + AROUND])
    text, next_ = show.shown_hits(index, [Hit(path, number, source.facts.definitions[number])])
    return f"Line {line} of {path} is in\n{text}\nNext: {next_}"


def _around(source: Source, line: int) -> str:
    number = source.facts.at(line)
    return "" if number is None else source.facts.definitions[number].qualified


def by_words(index: Index, text: str, path: str | None, head: str) -> str:
    """The files that hold the words of a text, below a line that says why."""
    near = near_names(index, text.split(".")[-1], score=50.0)
    names = f"Names a little like it: {', '.join(near)}.\n" if near else ""
    best, weights = bm25(index, text, path)
    if not best:
        next_ = (
            show.call(query=near[0]) if near else "fewer or other words; mode='outline' with path= shows what there is"
        )
        return f"{head} No text holds it either.\n{names}Next: {next_}"
    lines = []
    for file in best:
        source = index.source(file)
        assert source is not None  # it was scored
        lines.append(f"{file}\n{_best_lines(source, weights)}")
    return (
        f"{head} Files with its words (BM25):\n"
        + "\n".join(lines)
        + f"\n{names}Next: {show.call(query=best[0], mode='outline')}"
    )


def _best_lines(source: Source, weights: Mapping[str, float], count: int = 3) -> str:
    """The lines with the words that tell most."""
    lows = [line.lower() for line in source.lines]
    scores = [sum(weight for part, weight in weights.items() if part in low) for low in lows]
    best = sorted(range(len(lows)), key=lambda at: (-scores[at], at))[:count]
    return "\n".join(f"{at + 1:6}\t{source.lines[at].strip()[:200]}" for at in sorted(best) if scores[at])


def _one(hit: Hit) -> str:
    return show.call(query=f"{hit.path}:{hit.definition.qualified}")
