"""Tracing and aggregation after RULER: variables passed on, words counted."""

from __future__ import annotations

from itertools import pairwise

from skyrl_gym.envs.memory.draws import Draws
from skyrl_gym.envs.memory.problem import Problem
from skyrl_gym.envs.memory.prose import haystack

__all__ = ["common_words", "frequent_words", "variable_tracking"]

CHAINS = 2
CHAIN = 5
TOP = 3
MOST_CODED_WORDS = 2_000


def variable_tracking(draws: Draws, words: int) -> Problem:
    """Chains of assignments, one of which starts from the value asked for."""
    names = [name.upper() for name in draws.coined(CHAINS * CHAIN, syllables=2)]
    numbers = [draws.fresh(lambda random: str(random.randrange(10_000, 100_000))) for _ in range(CHAINS)]
    chains = [names[i * CHAIN : (i + 1) * CHAIN] for i in range(CHAINS)]
    lines = [_assignments(chain, number) for chain, number in zip(chains, numbers, strict=True)]
    # The chains interleave; within one, a variable is set before it is copied.
    order = [which for which in range(CHAINS) for _ in range(CHAIN)]
    draws.random.shuffle(order)
    document = haystack(draws.random, words, [lines[which].pop(0) for which in order])
    question = f"Which {CHAIN} variables have the value {numbers[0]}? Separate them by commas."
    return Problem(document, question, tuple((name,) for name in chains[0]))


def _assignments(chain: list[str], number: str) -> list[str]:
    copies = [f"VAR {after} = VAR {before}." for before, after in pairwise(chain)]
    return [f"VAR {chain[0]} = {number}.", *copies]


def common_words(draws: Draws, words: int) -> Problem:
    """A list in which some words stand five times as often as the others."""
    frequent = max(6, words // 20)
    rare = frequent // 5
    names = draws.coined(TOP + max(TOP, (words - TOP * frequent) // rare))
    counts = [frequent] * TOP + [rare] * (len(names) - TOP)
    question = f"Which {TOP} words stand most often in the list? Separate them by commas."
    return Problem(_shuffled(draws, names, counts), question, tuple((name,) for name in names[:TOP]))


def frequent_words(draws: Draws, words: int) -> Problem:
    """Coded words whose counts fall by a zeta law; what stands most often is noise, as in RULER."""
    names = ["...", *draws.coined(min(MOST_CODED_WORDS, max(TOP + 3, words // 12)))]
    counts = [max(1, int(words * 0.6 / rank**2)) for rank in range(1, len(names) + 1)]
    for rank in range(TOP, -1, -1):  # no tie among the first ranks, nor with the next
        counts[rank] = max(counts[rank], counts[rank + 1] + 1)
    question = f"Leaving out '...', which {TOP} coded words stand most often? Separate them by commas."
    return Problem(_shuffled(draws, names, counts), question, tuple((name,) for name in names[1 : TOP + 1]))


def _shuffled(draws: Draws, names: list[str], counts: list[int]) -> str:
    bag = [name for name, count in zip(names, counts, strict=True) for _ in range(count)]
    draws.random.shuffle(bag)
    return " ".join(bag)
