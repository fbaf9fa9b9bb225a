"""Task families after RULER (needles, variable tracking, aggregation), each a function of a seed.

A family gives a document, a question and the answers: one tuple of aliases for each answer that is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import NamedTuple

from skyrl_gym.envs.memory.encyclopedia import khop
from skyrl_gym.envs.memory.problem import Problem
from skyrl_gym.envs.memory.words import ADJECTIVES, NOUNS, coined_word, insert_at_depths, prose

__all__ = ["FAMILIES"]

DISTRACTORS = 3
VALUES = 3
CHAIN = 4
COMMON = 3


class _Needle(NamedTuple):
    key: str
    value: str

    def __str__(self) -> str:
        return f"The number of the {self.key} is {self.value}."


def _needles(rng: Random, count: int) -> list[_Needle]:
    """Needles with different keys and different values."""
    keys = rng.sample([(a, n) for a in ADJECTIVES for n in NOUNS], count)
    values = rng.sample(range(1_000, 10_000), count)
    return [_Needle(f"{a} {n}", str(v)) for (a, n), v in zip(keys, values, strict=True)]


def _niah_single(rng: Random, words: int) -> Problem:
    (needle,) = _needles(rng, 1)
    document = insert_at_depths(rng, prose(rng, words), [str(needle)])
    return Problem(document, f"What is the number of the {needle.key}?", ((needle.value,),))


def _niah_multikey(rng: Random, words: int) -> Problem:
    needles = _needles(rng, 1 + DISTRACTORS)
    document = insert_at_depths(rng, prose(rng, words), [str(needle) for needle in needles])
    asked = rng.choice(needles)
    return Problem(document, f"What is the number of the {asked.key}?", ((asked.value,),))


def _niah_multivalue(rng: Random, words: int) -> Problem:
    needles = _needles(rng, VALUES)
    key = needles[0].key
    document = insert_at_depths(rng, prose(rng, words), [str(_Needle(key, n.value)) for n in needles])
    question = f"What are all {VALUES} numbers of the {key}? Separate them by commas."
    return Problem(document, question, tuple((needle.value,) for needle in needles))


def _variable_tracking(rng: Random, words: int) -> Problem:
    names = [name.upper() for name in _coined(rng, 2 * (CHAIN + 1), syllables=2)]
    value, other = (str(v) for v in rng.sample(range(10_000, 100_000), 2))
    chains = names[: CHAIN + 1], names[CHAIN + 1 :]
    lines = [_assignments(chain, number) for chain, number in zip(chains, (value, other), strict=True)]
    # The two chains interleave; within one, a variable is set before it is copied.
    order = [0] * len(lines[0]) + [1] * len(lines[1])
    rng.shuffle(order)
    needles = [lines[which].pop(0) for which in order]
    document = insert_at_depths(rng, prose(rng, words), needles)
    question = f"Which {CHAIN + 1} variables have the value {value}? Separate them by commas."
    return Problem(document, question, tuple((name,) for name in chains[0]))


def _assignments(chain: list[str], value: str) -> list[str]:
    first = f"VAR {chain[0]} = {value}."
    return [first, *(f"VAR {after} = VAR {before}." for before, after in zip(chain, chain[1:], strict=False))]


def _common_words(rng: Random, words: int) -> Problem:
    frequent = max(6, words // 20)
    rare = max(1, frequent // 5)
    others = max(COMMON, (words - COMMON * frequent) // rare)
    names = _coined(rng, COMMON + others)
    bag = [name for name in names[:COMMON] for _ in range(frequent)]
    bag += [name for name in names[COMMON:] for _ in range(rare)]
    rng.shuffle(bag)
    question = f"Which {COMMON} words appear most often in the list? Separate them by commas."
    return Problem(" ".join(bag), question, tuple((name,) for name in names[:COMMON]))


def _frequent_words(rng: Random, words: int) -> Problem:
    """Counts fall by a zeta law; the most frequent "word" is noise, as in RULER."""
    names = ["...", *_coined(rng, max(8, words // 12))]
    counts = [max(1, int(words * 0.6 / rank**2)) for rank in range(1, len(names) + 1)]
    for rank in range(COMMON, 0, -1):  # the wanted ranks must be distinct
        counts[rank] = max(counts[rank], counts[rank + 1] + 1)
    bag = [name for name, count in zip(names, counts, strict=True) for _ in range(count)]
    rng.shuffle(bag)
    question = f"Leaving out '...', which {COMMON} coded words appear most often? Separate them by commas."
    return Problem(" ".join(bag), question, tuple((name,) for name in names[1 : COMMON + 1]))


def _coined(rng: Random, count: int, syllables: int = 3) -> list[str]:
    """Different coined words."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[coined_word(rng, syllables)] = None
    return list(found)


FAMILIES: Mapping[str, Callable[[Random, int], Problem]] = {
    "niah_single": _niah_single,
    "niah_multikey": _niah_multikey,
    "niah_multivalue": _niah_multivalue,
    "variable_tracking": _variable_tracking,
    "common_words": _common_words,
    "frequent_words": _frequent_words,
    "khop": khop,
}
