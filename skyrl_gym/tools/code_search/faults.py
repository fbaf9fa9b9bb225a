"""Where a source file is wrong in its syntax, and which of that an edit has brought in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from skyrl_gym.tools.code_search.languages import load_grammar

if TYPE_CHECKING:
    import tree_sitter

__all__ = ["Fault", "find_faults", "new_fault"]

MAX_FAULTS = 100
MAX_SHOWN = 60


class Fault(NamedTuple):
    """A part of a file that is no syntax: its lines count from 1, both ends included."""

    first: int
    last: int
    text: str

    def __str__(self) -> str:
        lines = f"line {self.first}" if self.first == self.last else f"lines {self.first}-{self.last}"
        return f"{lines}: {self.text}"


def find_faults(language: str, data: bytes) -> list[Fault]:
    """The first of the faults of a file, in order. A grammar reads some wrong code without complaint.

    Raises:
        MissingDependency: the language's grammar is not installed.
    """
    tree = load_grammar(language).parser.parse(data)
    return [_fault(data, node) for node in islice(_wrong(tree.walk()), MAX_FAULTS)]


def new_fault(before: bytes, old: Sequence[Fault], after: bytes, new: Sequence[Fault]) -> Fault | None:
    """The first fault of a changed file that it did not have before the change, wherever its lines have gone."""
    had = Counter(_identities(before, old))
    for fault, identity in zip(new, _identities(after, new), strict=True):
        if not had[identity]:
            return fault
        had[identity] -= 1
    return None


def _identities(data: bytes, faults: Sequence[Fault]) -> list[tuple[bytes, str]]:
    lines = data.split(b"\n")
    return [(lines[fault.first - 1].strip() if fault.first <= len(lines) else b"", fault.text) for fault in faults]


def _wrong(cursor: tree_sitter.TreeCursor) -> Iterator[tree_sitter.Node]:
    """The outermost nodes that are wrong themselves, past all that have no error below them."""
    while True:
        node = cursor.node
        assert node is not None  # a cursor is at one
        is_wrong = node.is_error or node.is_missing
        if is_wrong:
            yield node
        if not is_wrong and node.has_error and cursor.goto_first_child():
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return


def _fault(data: bytes, node: tree_sitter.Node) -> Fault:
    first, last = node.start_point[0] + 1, node.end_point[0] + 1
    if node.is_missing:
        return Fault(first, last, f"{node.type!r} is missing")
    start = data[node.start_byte : min(node.end_byte, node.start_byte + MAX_SHOWN)].split(b"\n", 1)[0]
    return Fault(first, last, f"unexpected {start.decode(errors='replace').strip()!r}")
