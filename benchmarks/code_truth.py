"""What Python's own `ast` knows of a tree of Python files: definitions, calls, and whom a call means.

Files that `ast` does not take are no part of the truth.
"""

from __future__ import annotations

import ast
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

Scope = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Place = tuple[str, int]
"""A file, and a line counted from 1."""


class Known(NamedTuple):
    """A class or function; its lines are those of its decorators too."""

    path: str
    qualified: str
    first: int
    last: int

    @property
    def name(self) -> str:
        return self.qualified.rpartition(".")[2]


@dataclass(frozen=True)
class Truth:
    """`calls`: where something of a name is called, or decorates. `meant`: the plain calls that mean a function
    of a file for certain, as the file defines it or imports it by that name from there, and binds it nowhere else.
    """

    files: frozenset[str]
    definitions: tuple[Known, ...]
    calls: Mapping[str, frozenset[Place]]
    meant: Mapping[tuple[str, str], frozenset[Place]]


@dataclass
class _File:
    path: str
    definitions: list[Known] = field(default_factory=list)
    calls: dict[str, set[Place]] = field(default_factory=lambda: defaultdict(set))
    plain: dict[str, set[Place]] = field(default_factory=lambda: defaultdict(set))
    own: set[str] = field(default_factory=set)
    imported: dict[str, str] = field(default_factory=dict)
    bound: dict[str, int] = field(default_factory=lambda: defaultdict(int))


def read_truth(root: Path) -> Truth:
    """Of all Python files below a folder."""
    read = [found for path in sorted(root.rglob("*.py")) if (found := _read(root, path)) is not None]
    files = frozenset(file.path for file in read)
    calls: dict[str, set[Place]] = defaultdict(set)
    meant: dict[tuple[str, str], set[Place]] = defaultdict(set)
    functions = {file.path: file.own for file in read}
    for file in read:
        for name, places in file.calls.items():
            calls[name] |= places
        for name, places in file.plain.items():
            home = file.path if name in file.own else _file_of(file.imported.get(name, ""), files)
            if file.bound[name] == 1 and home and name in functions[home]:
                meant[home, name] |= places
    return Truth(
        files,
        tuple(known for file in read for known in file.definitions),
        {name: frozenset(places) for name, places in calls.items()},
        {key: frozenset(places) for key, places in meant.items()},
    )


def _read(root: Path, path: Path) -> _File | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old escapes
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError):
        return None
    found = _File(path.relative_to(root).as_posix())
    for node, around in _walk(tree, ()):
        _note(found, node, around)
    return found


def _walk(node: ast.AST, around: tuple[Scope, ...]) -> Iterator[tuple[ast.AST, tuple[Scope, ...]]]:
    """Each node below one, with the definitions that it lies in."""
    for child in ast.iter_child_nodes(node):
        yield child, around
        yield from _walk(child, (*around, child) if isinstance(child, Scope) else around)


def _note(found: _File, node: ast.AST, around: tuple[Scope, ...]) -> None:
    if isinstance(node, Scope):
        _define(found, node, around)
    elif isinstance(node, ast.Call):
        _call(found, node.func)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            found.bound[alias.asname or alias.name] += 1
            if alias.asname is None:
                found.imported[alias.name] = _absolute(found.path, node)
    elif isinstance(node, ast.Import):
        for alias in node.names:
            found.bound[(alias.asname or alias.name).split(".")[0]] += 1
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        found.bound[node.id] += 1
    elif isinstance(node, ast.arg):
        found.bound[node.arg] += 1


def _define(found: _File, node: Scope, around: tuple[Scope, ...]) -> None:
    lines = [node.lineno, *(decorator.lineno for decorator in node.decorator_list)]
    qualified = ".".join(scope.name for scope in (*around, node))
    found.definitions.append(Known(found.path, qualified, min(lines), node.end_lineno or node.lineno))
    found.bound[node.name] += not (around and isinstance(around[-1], ast.ClassDef))  # a method is no plain name
    if not around and not isinstance(node, ast.ClassDef):
        found.own.add(node.name)
    for decorator in node.decorator_list:
        _call(found, decorator)


def _call(found: _File, function: ast.expr) -> None:
    match function:
        case ast.Name(id=name):
            found.calls[name].add((found.path, function.lineno))
            found.plain[name].add((found.path, function.lineno))
        case ast.Attribute(attr=name):
            found.calls[name].add((found.path, function.end_lineno or function.lineno))


def _absolute(path: str, node: ast.ImportFrom) -> str:
    """The module that names are taken from, by its name from the root of the tree."""
    if not node.level:
        return node.module or ""
    package = PurePosixPath(path).parts[: -node.level]
    return ".".join((*package, *([node.module] if node.module else [])))


def _file_of(module: str, files: frozenset[str]) -> str | None:
    stem = module.replace(".", "/")
    return next((path for path in (f"{stem}.py", f"{stem}/__init__.py") if path in files), None)
