"""Bugs by mutation of the syntax tree: one small, wrong change a bug, the rest of the file byte for byte."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["Mutation", "mutations"]


@dataclass(frozen=True)
class Mutation:
    """A change of one piece of a file's text. `start` and `end` are character offsets."""

    kind: str
    start: int
    end: int
    replacement: str

    def apply(self, source: str) -> str:
        """The changed source."""
        return source[: self.start] + self.replacement + source[self.end :]


def mutations(source: str) -> list[Mutation]:
    """Every mutation of a module, in order of place; each still compiles and differs from the source."""
    tree = ast.parse(source)
    text = _Text(source)
    found = {
        mutation
        for node in ast.walk(tree)
        for operator in _OPERATORS
        for mutation in operator(node, text)
        if _compiles(mutation.apply(source)) and mutation.apply(source) != source
    }
    return sorted(found, key=lambda m: (m.start, m.end, m.kind, m.replacement))


class _Text:
    """Offsets and pieces of a source."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._offset(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._offset(node.end_lineno, node.end_col_offset)

    def piece(self, node: ast.expr | ast.stmt) -> str:
        return self.source[self.start(node) : self.end(node)]

    def between(self, left: ast.expr, right: ast.expr, old: str, new: str, kind: str) -> Iterator[Mutation]:
        """Replaces an operator that stands between two operands, if it is found there once."""
        low, high = self.end(left), self.start(right)
        if self.source.count(old, low, high) == 1:
            at = self.source.index(old, low, high)
            yield Mutation(kind, at, at + len(old), new)

    def _offset(self, line: int, column: int) -> int:
        # ast counts columns in bytes of UTF-8.
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())


_COMPARISONS = {
    ast.Lt: ("<", ("<=", ">")),
    ast.LtE: ("<=", ("<", ">=")),
    ast.Gt: (">", (">=", "<")),
    ast.GtE: (">=", (">", "<=")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.In: (" in ", (" not in ",)),
    ast.NotIn: (" not in ", (" in ",)),
    ast.Is: (" is ", (" is not ",)),
    ast.IsNot: (" is not ", (" is ",)),
}
_ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
}


def _comparison(node: ast.AST, text: _Text) -> Iterator[Mutation]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
        old, options = _COMPARISONS[type(node.ops[0])]
        for new in options:
            yield from text.between(node.left, node.comparators[0], old, new, "comparison")


def _arithmetic(node: ast.AST, text: _Text) -> Iterator[Mutation]:
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        old, new = _ARITHMETIC[type(node.op)]
        yield from text.between(node.left, node.right, old, new, "arithmetic")


def _boolean(node: ast.AST, text: _Text) -> Iterator[Mutation]:
    if isinstance(node, ast.BoolOp):
        old, new = (" and ", " or ") if isinstance(node.op, ast.And) else (" or ", " and ")
        yield from text.between(node.values[0], node.values[1], old, new, "boolean")


def _constant(node: ast.AST, text: _Text) -> Iterator[Mutation]:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        for value in (node.value + 1, node.value - 1):
            yield Mutation("constant", text.start(node), text.end(node), str(value))


def _guard(node: ast.AST, text: _Text) -> Iterator[Mutation]:
    """Removes an `if` that only leaves or skips, unless it is all that its block holds."""
    for block in (getattr(node, name, None) for name in ("body", "orelse")):
        if not isinstance(block, list) or len(block) < 2:
            continue
        for statement in block:
            if isinstance(statement, ast.If) and not statement.orelse and _only_leaves(statement.body):
                yield Mutation("guard", _line_start(text, statement), _line_end(text, statement), "")


def _only_leaves(body: list[ast.stmt]) -> bool:
    return len(body) == 1 and isinstance(body[0], ast.Return | ast.Raise | ast.Continue | ast.Break)


def _condition(node: ast.AST, text: _Text) -> Iterator[Mutation]:
    if isinstance(node, ast.If | ast.While) and not isinstance(node.test, ast.Compare | ast.BoolOp):
        piece = text.piece(node.test)
        new = piece.removeprefix("not ") if piece.startswith("not ") else f"not {piece}"
        yield Mutation("condition", text.start(node.test), text.end(node.test), new)


def _arguments(node: ast.AST, text: _Text) -> Iterator[Mutation]:
    if isinstance(node, ast.Call) and len(node.args) == 2 and not node.keywords:
        first, second = node.args
        swapped = text.piece(second) + text.source[text.end(first) : text.start(second)] + text.piece(first)
        yield Mutation("arguments", text.start(first), text.end(second), swapped)


def _returned(node: ast.AST, text: _Text) -> Iterator[Mutation]:
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and len(node.value.elts) == 2:
        first, second = node.value.elts
        swapped = text.piece(second) + text.source[text.end(first) : text.start(second)] + text.piece(first)
        yield Mutation("returned", text.start(first), text.end(second), swapped)


def _result(node: ast.AST, text: _Text) -> Iterator[Mutation]:
    """Returns nothing, or the other truth value."""
    if isinstance(node, ast.Return) and node.value is not None:
        value = node.value.value if isinstance(node.value, ast.Constant) else ...
        other = str(not value) if isinstance(value, bool) else "None"
        yield Mutation("result", text.start(node.value), text.end(node.value), other)


def _slice(node: ast.AST, text: _Text) -> Iterator[Mutation]:
    """A slice that ends one too early or begins one too late."""
    if isinstance(node, ast.Slice):
        for bound, sign in ((node.lower, "+"), (node.upper, "-")):
            if bound is not None:
                new = f"({text.piece(bound)}) {sign} 1"
                yield Mutation("slice", text.start(bound), text.end(bound), new)


_OPERATORS: tuple[Callable[[ast.AST, _Text], Iterator[Mutation]], ...] = (
    _comparison,
    _arithmetic,
    _boolean,
    _constant,
    _guard,
    _condition,
    _arguments,
    _returned,
    _result,
    _slice,
)


def _line_start(text: _Text, statement: ast.stmt) -> int:
    return text.source.rfind("\n", 0, text.start(statement)) + 1


def _line_end(text: _Text, statement: ast.stmt) -> int:
    found = text.source.find("\n", text.end(statement))
    return len(text.source) if found < 0 else found + 1


def _compiles(source: str) -> bool:
    try:
        compile(source, "<mutation>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True
