"""Scores of an answer: exact match and F1 by the normalisation of SQuAD, for one answer or a set of them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

__all__ = ["exact_match", "normalise", "score", "set_scores", "token_f1"]

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SEPARATORS = re.compile(r"[,;\n]")
_AND = re.compile(r"\band\b", re.IGNORECASE)

Answers = Sequence[Sequence[str]]
"""For each wanted answer its aliases."""


def score(answer: str, wanted: Answers) -> tuple[float, Mapping[str, float]]:
    """The reward and the scores for reports: exact match where one answer is wanted, F1 where several are."""
    if len(wanted) > 1:
        scores = set_scores(answer, wanted)
        return scores["f1"], scores
    match = exact_match(answer, wanted[0])
    return match, {"exact_match": match, "f1": token_f1(answer, wanted[0]), "recall": match}


def normalise(text: str) -> str:
    """Lower case, no punctuation, no articles, single spaces (what SQuAD's evaluation script does)."""
    words = text.lower().translate(_PUNCTUATION).split()
    return " ".join(word for word in words if word not in ("a", "an", "the"))


def exact_match(answer: str, aliases: Sequence[str]) -> float:
    """1 when the answer equals one of the aliases after normalisation, else 0."""
    return float(bool(normalise(answer)) and normalise(answer) in {normalise(alias) for alias in aliases})


def token_f1(answer: str, aliases: Sequence[str]) -> float:
    """The best overlap of words with one of the aliases, as F1."""
    return max((_f1(normalise(answer).split(), normalise(alias).split()) for alias in aliases), default=0.0)


def set_scores(answer: str, wanted: Answers) -> Mapping[str, float]:
    """How the items that an answer lists agree with those wanted.

    `recall` is the share of the wanted ones that is listed (RULER's string_match_all, but item by item);
    `f1` also counts what is listed and not wanted, so that listing everything costs.
    Items are separated by commas, semicolons or line ends, and by "and" unless an alias holds it.
    """
    forms = [{normalise(alias) for alias in aliases} for aliases in wanted]
    listed = _items(answer, set().union(*forms))
    hits = sum(not form.isdisjoint(listed) for form in forms)
    # Two aliases of one answer are one item.
    extra = len(listed - set().union(*forms))
    f1 = 2 * hits / (hits + extra + len(wanted)) if hits else 0.0
    return {"exact_match": float(f1 == 1.0), "f1": f1, "recall": hits / len(wanted)}


def _items(answer: str, known: set[str]) -> set[str]:
    found: set[str] = set()
    for part in _SEPARATORS.split(answer):
        whole = normalise(re.sub(r"^\s*and\b", "", part, flags=re.IGNORECASE))
        found |= {whole} if whole in known else {normalise(piece) for piece in _AND.split(part)}
    return found - {""}


def _f1(ours: Sequence[str], theirs: Sequence[str]) -> float:
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0
