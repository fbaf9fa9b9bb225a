"""Scores of an answer: exact match and F1 by the normalisation of SQuAD, for one answer or a set of them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

__all__ = ["exact_match", "normalise", "set_f1", "token_f1"]

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SEPARATORS = re.compile(r"[,;\n]|\band\b")


def normalise(text: str) -> str:
    """Lower case, no punctuation, no articles, single spaces (SQuAD's evaluation script, in our words)."""
    words = text.lower().translate(_PUNCTUATION).split()
    return " ".join(word for word in words if word not in ("a", "an", "the"))


def exact_match(answer: str, aliases: Sequence[str]) -> float:
    """1 when the answer equals one of the aliases after normalisation, else 0."""
    return float(normalise(answer) in {normalise(alias) for alias in aliases})


def token_f1(answer: str, aliases: Sequence[str]) -> float:
    """The best overlap of words with one of the aliases, as F1."""
    return max((_f1(normalise(answer).split(), normalise(alias).split()) for alias in aliases), default=0.0)


def set_f1(answer: str, wanted: Sequence[Sequence[str]]) -> float:
    """F1 between the items that an answer lists and those wanted (each with its aliases).

    Items are separated by commas, semicolons, line ends or "and". Listing everything costs precision.
    """
    listed = {item for part in _SEPARATORS.split(answer) if (item := normalise(part))}
    hits = sum(any(normalise(alias) in listed for alias in aliases) for aliases in wanted)
    return 2 * hits / (len(listed) + len(wanted)) if hits else 0.0


def _f1(ours: Sequence[str], theirs: Sequence[str]) -> float:
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0
