"""From the bytes of a source file to its facts, by its syntax tree."""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skyrl_gym.tools.code_search.facts import NO_PARENT, Definition, FileFacts, Import
from skyrl_gym.tools.code_search.languages import load_grammar

if TYPE_CHECKING:
    import tree_sitter

    Captures = dict[str, list[tree_sitter.Node]]

__all__ = ["scan"]

MAX_NAME = 200
MAX_DEFINITIONS = 20_000
MINIFIED_LINE = 400  # bytes a line, on the average of a file that no one wrote by hand
TYPES = frozenset({"class", "struct", "interface", "trait", "enum"})
SCOPES = frozenset({"scope", "module_scope"})
DETAILS = frozenset({"name", "bases", "receiver", "imported", "require"})
_BASE = re.compile(r"([A-Za-z_$][\w$.:]*)(?!\s*=)")
_NO_BASES = frozenset({"extends", "implements", "public", "private", "protected", "virtual", "with", "default"})


@dataclass
class _Found:
    """A definition whose place among the others is not known yet; from byte `start` up to `end`."""

    kind: str
    name: str
    start: int
    end: int
    first: int
    last: int
    bases: tuple[str, ...]


def scan(language: str, data: bytes) -> FileFacts:
    """The facts of a file. A file that does not parse has those of the parts that do.

    Raises:
        MissingDependency: the language's grammar is not installed.
    """
    import tree_sitter

    if len(data) > 8_192 and len(data) > MINIFIED_LINE * data.count(b"\n"):
        return FileFacts(language)
    grammar = load_grammar(language)
    tree = grammar.parser.parse(data)
    found: dict[int, _Found] = {}
    calls: dict[bytes, array[int]] = defaultdict(lambda: array("I"))
    modules: dict[tuple[str, int], dict[str, None]] = {}
    for _, captures in tree_sitter.QueryCursor(grammar.query).matches(tree.root_node):
        if call := captures.get("call"):
            for node in call:
                calls[data[node.start_byte : node.end_byte]].append(node.start_point[0] + 1)
        elif module := captures.get("module"):
            names = modules.setdefault((_text(data, module[0]).strip("'\"<>"), module[0].start_point[0] + 1), {})
            names.update(dict.fromkeys(_text(data, node) for node in captures.get("imported", ())))
        else:
            _add(found, data, captures)
    return FileFacts(
        language,
        _nested(list(found.values())),
        {name[:MAX_NAME].decode(errors="replace"): lines for name, lines in calls.items()},
        tuple(Import(module, tuple(names), line) for (module, line), names in modules.items()),
    )


def _text(data: bytes, node: tree_sitter.Node) -> str:
    return data[node.start_byte : min(node.end_byte, node.start_byte + MAX_NAME)].decode(errors="replace")


def _add(found: dict[int, _Found], data: bytes, captures: Captures) -> None:
    """A definition; of several of one name (plain and decorated) the widest stays, of equals the first."""
    names = captures.get("name")
    kind = next((key for key in captures if key not in DETAILS), None)
    if not names or kind is None or len(found) >= MAX_DEFINITIONS:
        return
    name, node = names[0], captures[kind][0]
    held = found.get(name.start_byte)
    if held is not None and held.kind == "variable":  # what holds a function is one
        held = None
    if held is not None and (kind == "variable" or held.end - held.start >= node.end_byte - node.start_byte):
        return
    text = _plain(_text(data, name))
    if receiver := captures.get("receiver"):
        text = f"{_plain(_text(data, receiver[0]))}.{text}"
    bases = tuple(base for part in captures.get("bases", ()) for base in _bases(_text(data, part)))
    first, last = node.start_point[0] + 1, node.end_point[0] + 1
    if node.end_point[1] == 0 and last > first:  # the node ends with a line's end
        last -= 1
    found[name.start_byte] = _Found(kind, text, node.start_byte, node.end_byte, first, last, bases)


def _plain(name: str) -> str:
    """`Outer::method` as `Outer.method`; without type parameters, pointers and quotes."""
    if name.isidentifier():
        return name
    name = re.sub(r"<[^<>]*>|\[[^\[\]]*\]", "", name) if not name.startswith("operator") else name
    return ".".join(part.strip(" *&'\"()") for part in name.split("::")).strip(".")


def _bases(text: str) -> list[str]:
    names = (match[1].replace("::", ".") for match in _BASE.finditer(text))
    return [name for name in names if name not in _NO_BASES and name.strip(".")]


def _nested(found: list[_Found]) -> tuple[Definition, ...]:
    """The definitions in order, each with the name of what it lies in; scopes that only qualify names fall out."""
    made: list[Definition] = []
    open_: list[tuple[int, str, int, str]] = []  # end, qualified name, number or parent's, kind
    for item in sorted(found, key=lambda item: (item.start, -item.end)):
        while open_ and open_[-1][0] <= item.start:
            open_.pop()
        _, prefix, parent, around = open_[-1] if open_ else (0, "", NO_PARENT, "")
        qualified = f"{prefix}.{item.name}" if prefix else item.name
        if item.kind in SCOPES:
            open_.append((item.end, qualified, parent, item.kind))
            continue
        name = item.name.rpartition(".")[2] or item.name
        made.append(Definition(_kind(item, around), name, qualified, item.first, item.last, parent, item.bases))
        open_.append((item.end, qualified, len(made) - 1, item.kind))
    return tuple(made)


def _kind(item: _Found, around: str) -> str:
    if item.kind in ("function", "declaration"):
        is_method = around in TYPES or around == "scope" or "." in item.name
        return "method" if is_method else "function"
    return "attribute" if item.kind == "variable" and around in TYPES else item.kind
