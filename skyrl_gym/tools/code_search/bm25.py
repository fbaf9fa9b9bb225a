"""The files that hold the words of a text best, by BM25 over the parts that identifiers are made of."""

from __future__ import annotations

import math

import numpy as np

from skyrl_gym.tools.code_search.lookup import within
from skyrl_gym.tools.code_search.table import Index
from skyrl_gym.tools.code_search.words import subwords

__all__ = ["bm25"]

K1, B = 1.2, 0.75
TEST_WEIGHT = 0.5


def bm25(index: Index, text: str, path: str | None, limit: int = 5) -> tuple[list[str], dict[str, float]]:
    """The best files, and how much each part of the text's words tells."""
    sides = [(table, shown) for table, shown in zip(index.tables, index.shown, strict=True) if table.files]
    count = sum(int(shown.sum()) for _, shown in sides) or 1
    average = sum(float(table.words.lengths[shown].sum()) for table, shown in sides) / count or 1.0
    scores = [np.zeros(len(table.files)) for table, _ in sides]
    weights: dict[str, float] = {}
    for part in dict.fromkeys(subwords(text)):
        found = [table.words.times(part) for table, _ in sides]
        held = sum(int(shown[files].sum()) for (_, shown), (files, _) in zip(sides, found, strict=True))
        weights[part] = math.log(1 + (count - held + 0.5) / (held + 0.5))
        for (table, _), score, (files, times) in zip(sides, scores, found, strict=True):
            longer = 1 - B + B * table.words.lengths[files] / average
            score[files] += weights[part] * times * (K1 + 1) / (times + K1 * longer)
    best = []
    for (table, shown), score in zip(sides, scores, strict=True):
        weighed = score * np.where(table.are_tests, TEST_WEIGHT, 1.0) * shown
        best += [(-float(weighed[number]), table.words.paths[number]) for number in np.flatnonzero(weighed)]
    return [file for _, file in sorted(best) if within(file, path)][:limit], weights
