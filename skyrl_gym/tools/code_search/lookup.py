"""From what was asked to what was meant: names exact, qualified, in part, mistyped; words at last."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from skyrl_gym.tools.code_search.table import Hit, Index, is_test
from skyrl_gym.tools.code_search.words import plain

__all__ = ["Found", "Query", "find", "is_pattern", "near_names", "read_query", "within"]

MAX_PARTIAL = 200
NEAR_SCORE = 72.0
NEAR_COUNT = 5
NEAR_SPREAD = 10.0  # below the best: what is less like it is another name
_KEYWORD = re.compile(
    r"^(?:(?:async|export|public|static|pub)\s+)*"
    r"(?:class|def|function|func|fn|struct|interface|trait|enum|type|method|impl|macro)\s+(?=\S)"
)
_FILE = re.compile(r"^(?P<path>[^\s:]*[^\s:]\.\w{1,4})(?::(?P<rest>.+))?$")
_KINDS = {"class": 0, "struct": 0, "interface": 0, "trait": 0, "enum": 0, "type": 1, "function": 1, "method": 1}


@dataclass(frozen=True)
class Query:
    """What was asked for: `parts` of a qualified name, in a file, or at a line of it."""

    parts: tuple[str, ...]
    path: str | None = None
    line: int | None = None

    @property
    def name(self) -> str:
        """The last part; empty if a file alone was asked for."""
        return self.parts[-1] if self.parts else ""


@dataclass(frozen=True)
class Found:
    """Hits, best first, and how well they fit: `exact`, `inherited`, `spelling`, `partial`, `similar`."""

    how: str
    hits: tuple[Hit, ...]


def read_query(text: str, file_named: Callable[[str], str | None]) -> Query:
    """A query's parts; `path.py`, `path.py:12` and `path.py:Class.method` name a file, if there is such a one."""
    text = text.strip().strip("`\"'")
    named = _FILE.match(text)
    path = file_named(named["path"]) if named else None
    if named is None or path is None:
        return Query(_parts(text))
    rest = (named["rest"] or "").lstrip(":")
    return Query((), path, int(rest)) if rest.isdigit() else Query(_parts(rest), path)


def _parts(text: str) -> tuple[str, ...]:
    text = _KEYWORD.sub("", text.strip())
    text = re.sub(r"\(.*\)?$|<.*>$|:$", "", text, flags=re.DOTALL).strip()
    return tuple(part for part in re.split(r"\.|::|#|->", text) if part.strip())


def is_pattern(path: str) -> bool:
    """Whether it stands for all paths that fit it."""
    return any(sign in path for sign in "*?[")


def within(path: str, wanted: str | None) -> bool:
    """Whether a file is the wanted one, below a wanted folder, or fits a pattern."""
    if not wanted or wanted == ".":
        return True
    if is_pattern(wanted):
        return _pattern(wanted).fullmatch(path) is not None
    return path == wanted or path.startswith(f"{wanted.rstrip('/')}/")


def _pattern(glob: str) -> re.Pattern[str]:
    """`**` stands for any folders, also none; `*` for a part of one name."""
    made = re.escape(glob).replace(r"\*\*/", "(?:.*/)?").replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
    made = made.replace(r"\?", "[^/]").replace(r"\[", "[").replace(r"\]", "]")
    try:
        return re.compile(made if "/" in glob else f"(?:.*/)?{made}")
    except re.error:
        return re.compile(re.escape(glob))


def find(index: Index, query: Query, path: str | None) -> Found | None:
    """The definitions that a name fits best; None if it fits none."""

    def fitting(
        hits: Iterable[Hit], fits: Callable[[Sequence[str], Sequence[str]], bool], parts: Sequence[str]
    ) -> list[Hit]:
        return [hit for hit in hits if within(hit.path, path) and fits(_full(hit), parts)]

    exact = index.named(query.name)
    for fits in (_ends, _follows):
        if hits := fitting(exact, fits, query.parts):
            return Found("exact", _ranked(hits))
    if len(query.parts) > 1 and (hits := _inherited(index, query, path)):
        return Found("inherited", _ranked(hits))
    low = [part.lower() for part in query.parts]
    spelled = [hit for name in index.spelled(plain(query.name)) for hit in index.named(name)]
    if hits := fitting(spelled, _follows_plainly, low):
        return Found("spelling", _ranked(hits))
    if hits := fitting(_partial(index, query.name), _follows_loosely, low):
        return Found("partial", _ranked(hits, query.name))
    near = [] if " " in query.name else near_names(index, query.name)  # several words are no slip of the keys
    similar = [hit for name in near for hit in index.named(name)]
    if hits := fitting(similar, _follows_loosely, [*low[:-1], ""]) or fitting(similar, lambda *_: True, ()):
        return Found("similar", tuple(sorted(hits, key=lambda hit: (near.index(hit.definition.name), _rank(hit)))))
    return None


def near_names(index: Index, name: str, score: float = NEAR_SCORE) -> list[str]:
    """The names of definitions that are spelled most like one."""
    from rapidfuzz import fuzz, process

    if len(name) < 3:
        return []
    form, most = plain(name), NEAR_COUNT * 2
    found = {
        near: (-likeness, near)
        for table in index.tables
        for near, likeness, _ in process.extract(
            form, table.spellings.forms, scorer=fuzz.ratio, limit=most, score_cutoff=score
        )
    }
    best = sorted(found.values())[:most]
    near = [form for unlikeness, form in best if -unlikeness >= -best[0][0] - NEAR_SPREAD]
    return [known for form in near for known in index.spelled(form) if index.named(known)][:NEAR_COUNT]


def _full(hit: Hit) -> list[str]:
    """A definition's whole dotted name, the folders and the file first."""
    *folders, file = hit.path.split("/")
    stem = file.split(".")[0]
    return [*folders, *([] if stem in ("__init__", "index", "mod") else [stem]), *hit.definition.qualified.split(".")]


def _ends(full: Sequence[str], parts: Sequence[str]) -> bool:
    return list(full[-len(parts) :]) == list(parts)


def _follows(full: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether the parts are among the name's in their order: what a package offers is often defined deeper."""
    rest = iter(full)
    return all(part in rest for part in parts)


def _follows_plainly(full: Sequence[str], parts: Sequence[str]) -> bool:
    return _follows([plain(part) for part in full], [plain(part) for part in parts])


def _follows_loosely(full: Sequence[str], parts: Sequence[str]) -> bool:
    return _follows([part.lower() for part in full[:-1]], parts[:-1])


def _partial(index: Index, name: str) -> list[Hit]:
    low = name.lower()
    if len(low) < 2:
        return []
    names = index.like(name)
    best = sorted(names, key=lambda known: (not known.lower().startswith(low), len(known), known))
    return [hit for known in best[:MAX_PARTIAL] for hit in index.named(known)]


def _inherited(index: Index, query: Query, path: str | None) -> list[Hit]:
    """A method that a class has from its bases; the nearest of them."""
    classes = [hit for hit in index.named(query.parts[-2]) if within(hit.path, path)]
    seen = {hit.definition.name for hit in classes}
    methods = index.named(query.name)
    while classes:
        bases = {base.rpartition(".")[2] for hit in classes for base in hit.definition.bases} - seen
        seen |= bases
        found = [hit for hit in methods if any(part in bases for part in hit.definition.qualified.split(".")[-2:-1])]
        if found:
            return found
        classes = [hit for base in bases for hit in index.named(base)]
    return []


def _rank(hit: Hit) -> tuple[object, ...]:
    definition = hit.definition
    return is_test(hit.path), _KINDS.get(definition.kind, 2), hit.path.count("/"), hit.path, definition.first


def _ranked(hits: list[Hit], part: str = "") -> tuple[Hit, ...]:
    low = part.lower()

    def key(hit: Hit) -> tuple[object, ...]:
        name = hit.definition.name.lower()
        return is_test(hit.path), not name.startswith(low), len(name) if low else 0, _rank(hit)

    return tuple(sorted(dict.fromkeys(hits), key=key))
