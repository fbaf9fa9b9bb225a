"""Raises at a chosen line of chosen files, once: what follows is the clean-up of what had been done by then."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["Broken", "Place", "breaking_at", "files_of", "lines_run"]

Place = tuple[str, int]
_Tracer = Callable[[FrameType, str, Any], Any]


class Broken(Exception):
    """What is raised."""


def files_of(kind: type) -> frozenset[str]:
    """Where a class and its bases are written."""
    found = (
        inspect.getsourcefile(base) for base in kind.__mro__ if base.__module__ not in ("builtins", "abc", "typing")
    )
    return frozenset(str(Path(path)) for path in found if path)


@contextmanager
def lines_run(files: frozenset[str]) -> Iterator[list[Place]]:
    """The lines of the files that are run in this thread meanwhile, each once, in their order."""
    seen: dict[Place, None] = {}
    places: list[Place] = []
    with _traced(files, lambda place: seen.setdefault(place)):
        yield places
    places += seen


@contextmanager
def breaking_at(place: Place, files: frozenset[str]) -> Iterator[None]:
    """Before a line is run for the first time, `Broken` is raised there."""

    def watch(here: Place) -> None:
        if here == place:
            sys.settrace(None)
            raise Broken(f"{Path(place[0]).name}:{place[1]}")

    with _traced(files, watch):
        yield


@contextmanager
def _traced(files: frozenset[str], watch: Callable[[Place], None]) -> Iterator[None]:
    def enter(frame: FrameType, event: str, argument: Any) -> _Tracer | None:
        return line if frame.f_code.co_filename in files and frame.f_code.co_name != "<module>" else None

    def line(frame: FrameType, event: str, argument: Any) -> _Tracer:
        if event == "line" and sys.gettrace() is enter:
            watch((frame.f_code.co_filename, frame.f_lineno))
        return line

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)
