"""How a document is read: in sections, with a memory of bounded length."""

from __future__ import annotations

import re

__all__ = ["CHARACTERS_PER_WORD", "clip", "sections"]

CHARACTERS_PER_WORD = 16  # on average, so that a memory can't hold more by leaving out the spaces

_WORD = re.compile(r"\s*\S+\s*")
_SENTENCE_END = re.compile(r"\w[.!?][\"')\]]*\s*$")


def sections(document: str, words: int) -> tuple[str, ...]:
    """The document in parts of at most `words` words; joined they are the document, byte for byte.

    A section ends with a sentence, if one ends within its words.
    """
    parts = _WORD.findall(document)
    found: list[str] = []
    start = 0
    while start < len(parts):
        stop = _end(parts, start, start + words)
        found.append("".join(parts[start:stop]))
        start = stop
    return tuple(found) or (document,)


def _end(parts: list[str], start: int, limit: int) -> int:
    if limit >= len(parts):
        return len(parts)
    return next((stop for stop in range(limit, start, -1) if _SENTENCE_END.search(parts[stop - 1])), limit)


def clip(memory: str, words: int) -> str:
    """The first `words` words of a memory, and of these at most 16 characters a word on average."""
    kept = "".join(_WORD.findall(memory)[:words]).strip()
    return kept[: words * CHARACTERS_PER_WORD].rstrip()
