"""The kinds of task that can be generated, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from skyrl_gym.envs.memory.counting import common_words, frequent_words, variable_tracking
from skyrl_gym.envs.memory.khop import khop
from skyrl_gym.envs.memory.needles import niah_multikey, niah_multivalue, niah_single
from skyrl_gym.envs.memory.problem import Problem

__all__ = ["FAMILIES", "Family"]


class Family(NamedTuple):
    """How problems are made: `make(draws, words)`, with the task row's `option` by name where there is one."""

    make: Callable[..., Problem]
    option: Literal["values", "hops"] | None = None


FAMILIES: Mapping[str, Family] = {
    "niah_single": Family(niah_single, "values"),
    "niah_multikey": Family(niah_multikey, "values"),
    "niah_multivalue": Family(niah_multivalue, "values"),
    "variable_tracking": Family(variable_tracking),
    "common_words": Family(common_words),
    "frequent_words": Family(frequent_words),
    "khop": Family(khop, "hops"),
}
