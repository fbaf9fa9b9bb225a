"""Changes to files, where a message holds some: a patch, or a call that replaces one text by another."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

__all__ = ["Diff", "edit_of", "patch_in"]

Kind: TypeAlias = Literal["add", "del", "hunk", "same"]
Diff: TypeAlias = tuple[tuple[Kind, str], ...]
"""Lines, each with what it is."""

_PAIRS = (("old_str", "new_str"), ("old_string", "new_string"), ("old_text", "new_text"), ("search", "replace"))
_PATCH = re.compile(r"^(?:diff --git |--- \S.*\n\+\+\+ \S|@@ -\d)", re.MULTILINE)
MOST_CHARACTERS = 100_000  # of a text that is looked at


def patch_in(text: str) -> Diff:
    """The lines of a text that holds a unified diff; nothing where it holds none."""
    found = _PATCH.search(text, 0, MOST_CHARACTERS)
    if found is None or "\n@@ -" not in "\n" + text[found.start() :]:
        return ()
    before: Diff = tuple(("same", line) for line in text[: found.start()].splitlines())
    return (*before, *((_kind(line), line) for line in text[found.start() :].split("\n")))


def edit_of(arguments: Mapping[str, Any]) -> Diff:
    """What a call replaces, as the lines of a diff; nothing where it replaces nothing."""
    for old, new in _PAIRS:
        before, after = arguments.get(old), arguments.get(new)
        if isinstance(before, str) and isinstance(after, str) and len(before) + len(after) < MOST_CHARACTERS:
            lines = difflib.unified_diff(before.split("\n"), after.split("\n"), lineterm="", n=3)
            return tuple((_kind(line), line) for line in list(lines)[2:])
    return ()


def _kind(line: str) -> Kind:
    if line.startswith(("@@ ", "diff --git ", "--- ", "+++ ", "index ")):
        return "hunk"
    return "add" if line.startswith("+") else "del" if line.startswith("-") else "same"
