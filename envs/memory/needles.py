"""Needles in a haystack: sentences that give a key its value, after RULER's niah tasks."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from random import Random
from typing import NamedTuple

from skyrl_gym.envs.memory.draws import Draws, coined_word
from skyrl_gym.envs.memory.lexicon import LEXICON
from skyrl_gym.envs.memory.problem import Problem
from skyrl_gym.envs.memory.prose import haystack

__all__ = ["VALUES", "niah_multikey", "niah_multivalue", "niah_single"]

DISTRACTORS = 3
VALUES_PER_KEY = 3


class _Kind(NamedTuple):
    label: str
    make: Callable[[Random], str]


VALUES: Mapping[str, _Kind] = {
    "number": _Kind("number", lambda random: str(random.randrange(1_000, 10_000))),
    "word": _Kind("password", coined_word),
    "uuid": _Kind("code", lambda random: str(uuid.UUID(int=random.getrandbits(128), version=4))),
}


def niah_single(draws: Draws, words: int, values: str) -> Problem:
    """One needle."""
    key, value = _key(draws), draws.fresh(VALUES[values].make)
    return Problem(haystack(draws.random, words, [_needle(values, key, value)]), _question(values, key), ((value,),))


def niah_multikey(draws: Draws, words: int, values: str) -> Problem:
    """Needles of the same form for other keys; one is asked for."""
    pairs = [(_key(draws), draws.fresh(VALUES[values].make)) for _ in range(1 + DISTRACTORS)]
    key, value = draws.random.choice(pairs)
    document = haystack(draws.random, words, [_needle(values, *pair) for pair in pairs])
    return Problem(document, _question(values, key), ((value,),))


def niah_multivalue(draws: Draws, words: int, values: str) -> Problem:
    """Several needles for each of two keys; all the values of one are wanted."""
    wanted, other = _key(draws), _key(draws)
    pairs = [(key, draws.fresh(VALUES[values].make)) for key in (wanted, other) for _ in range(VALUES_PER_KEY)]
    answers = tuple((value,) for key, value in pairs if key == wanted)
    draws.random.shuffle(pairs)
    document = haystack(draws.random, words, [_needle(values, *pair) for pair in pairs])
    question = f"What are the {VALUES_PER_KEY} {VALUES[values].label}s of the {wanted}? Separate them by commas."
    return Problem(document, question, answers)


def _key(draws: Draws) -> str:
    return draws.fresh(lambda random: f"{random.choice(LEXICON['adjectives'])} {random.choice(LEXICON['nouns'])}")


def _needle(values: str, key: str, value: str) -> str:
    return f"The {VALUES[values].label} of the {key} is {value}."


def _question(values: str, key: str) -> str:
    return f"What is the {VALUES[values].label} of the {key}?"
