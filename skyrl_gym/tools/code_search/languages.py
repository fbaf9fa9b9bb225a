"""The languages whose code can be searched: how their files are named, and what is asked of their syntax trees.

A language is a line in `LANGUAGES` and a file in `queries/`. Its captures: `@name` of a definition, whose node has the
kind as its name; `@bases`, `@receiver` of one; `@scope` and `@module_scope` for what only qualifies names within;
`@call` for the last part of what is called; `@module` and `@imported`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from skyrl_gym.errors import MissingDependency

if TYPE_CHECKING:
    import tree_sitter

__all__ = ["LANGUAGES", "Grammar", "check_grammars", "language_of", "load_grammar"]


@dataclass(frozen=True)
class Language:
    """`package` brings the grammar by its function `function`; `queries` are files, whose text is joined."""

    package: str
    suffixes: tuple[str, ...]
    queries: tuple[str, ...]
    function: str = "language"


LANGUAGES: Mapping[str, Language] = MappingProxyType(
    {
        "python": Language("tree_sitter_python", (".py", ".pyi", ".pyw"), ("python",)),
        "javascript": Language(
            "tree_sitter_javascript", (".js", ".jsx", ".mjs", ".cjs"), ("ecmascript", "javascript", "jsx")
        ),
        "typescript": Language(
            "tree_sitter_typescript", (".ts", ".mts", ".cts"), ("ecmascript", "typescript"), "language_typescript"
        ),
        "tsx": Language("tree_sitter_typescript", (".tsx",), ("ecmascript", "typescript", "jsx"), "language_tsx"),
        "go": Language("tree_sitter_go", (".go",), ("go",)),
        "rust": Language("tree_sitter_rust", (".rs",), ("rust",)),
        "java": Language("tree_sitter_java", (".java",), ("java",)),
        "c": Language("tree_sitter_c", (".c",), ("c",)),
        # Headers too: the grammar of C++ reads C, that of C does not read classes.
        "cpp": Language("tree_sitter_cpp", (".cpp", ".cc", ".cxx", ".h", ".hpp", ".hh", ".hxx", ".ipp"), ("c", "cpp")),
    }
)
_BY_SUFFIX = {suffix: name for name, language in LANGUAGES.items() for suffix in language.suffixes}


@dataclass(frozen=True)
class Grammar:
    """A parser of one language, and the query for its definitions, calls and imports."""

    parser: tree_sitter.Parser
    query: tree_sitter.Query


def language_of(path: str) -> str | None:
    """The language of a file by its name, None if it is none of ours."""
    return _BY_SUFFIX.get(PurePosixPath(path).suffix.lower())


@cache
def load_grammar(name: str) -> Grammar:
    """The grammar of a language.

    Raises:
        MissingDependency: its package is not installed.
    """
    language = LANGUAGES[name]
    tree_sitter = _module("tree_sitter")
    made = tree_sitter.Language(getattr(_module(language.package), language.function)())
    folder = files("skyrl_gym.tools.code_search") / "queries"
    query = "\n".join((folder / f"{file}.scm").read_text() for file in language.queries)
    return Grammar(tree_sitter.Parser(made), tree_sitter.Query(made, query))


@cache
def check_grammars() -> None:
    """Looks whether all that searching needs is installed, without loading it.

    Raises:
        MissingDependency: something isn't.
    """
    packages = {language.package for language in LANGUAGES.values()}
    for package in ("tree_sitter", "rapidfuzz", *sorted(packages)):
        if importlib.util.find_spec(package) is None:
            raise MissingDependency.extra(package.replace("_", "-"), "swe")


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependency.extra(name.replace("_", "-"), "swe") from error
