"""What is known of a source file without looking at it again: its definitions, calls and imports."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from sys import intern
from typing import Any, NamedTuple

__all__ = ["Definition", "FileFacts", "Import"]

NO_PARENT = -1


class Definition(NamedTuple):
    """A named thing. Lines count from 1, both ends included; `qualified` is `Class.method`, within its file."""

    kind: str
    name: str
    qualified: str
    first: int
    last: int
    parent: int = NO_PARENT
    bases: tuple[str, ...] = ()

    @property
    def length(self) -> int:
        """In lines."""
        return self.last - self.first + 1


class Import(NamedTuple):
    """`module` as the file writes it, and the names that are taken from it."""

    module: str
    names: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class FileFacts:
    """Facts of one file. `calls` has the lines of each called name; `definitions` are in order of their lines."""

    language: str
    definitions: tuple[Definition, ...] = ()
    calls: Mapping[str, array[int]] | None = None
    imports: tuple[Import, ...] = ()

    @cached_property
    def _starts(self) -> list[int]:
        return [definition.first for definition in self.definitions]

    def at(self, line: int) -> int | None:
        """The number of the innermost definition that holds a line."""
        number = bisect_right(self._starts, line) - 1
        while number >= 0 and self.definitions[number].last < line:
            number = self.definitions[number].parent if self.definitions[number].parent >= 0 else number - 1
        return number if number >= 0 else None

    def members(self, number: int) -> Iterator[int]:
        """The numbers of what is defined directly in a definition; NO_PARENT stands for the file."""
        return (i for i, definition in enumerate(self.definitions) if definition.parent == number)

    def lines_called(self, name: str) -> Iterable[int]:
        """Where something of this name is called."""
        return (self.calls or {}).get(name, ())

    def to_json(self) -> dict[str, Any]:
        """For `from_json`, as short as can be."""
        return {
            "language": self.language,
            "definitions": self.definitions,
            "calls": {name: lines.tolist() for name, lines in (self.calls or {}).items()},
            "imports": self.imports,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FileFacts:
        """The facts that `to_json` wrote.

        Raises:
            ValueError: these are none.
        """
        try:
            return cls(
                str(data["language"]),
                tuple(_definition(*row) for row in data["definitions"]),
                {intern(name): array("I", lines) for name, lines in data["calls"].items()},
                tuple(Import(module, tuple(names), line) for module, names, line in data["imports"]),
            )
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"these are no facts of a file: {error!r}") from error


def _definition(
    kind: str, name: str, qualified: str, first: int, last: int, parent: int, bases: list[str]
) -> Definition:
    return Definition(intern(kind), intern(name), qualified, first, last, parent, tuple(bases))
