"""Rewards -> advantages, within the group of a task. An excluded trajectory is as if it had never been."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import sqrt
from typing import Literal, TypeAlias, get_args

from skyrl_gym.errors import ConfigError

__all__ = ["Estimator", "advantages"]

Estimator: TypeAlias = Literal["group", "mean", "leave_one_out", "batch"]
EPSILON = 1e-4  # as in TRL, so that "group" equals its scale_rewards="group"


def advantages(rewards: Sequence[float | None], groups: Sequence[Hashable], estimator: Estimator) -> list[float | None]:
    """One advantage for each reward; None (excluded) stays None.

    `group`: (r - mean) / std of the group (GRPO). `mean`: r - mean (Dr. GRPO). `leave_one_out`: r minus the
    mean of the others (RLOO). `batch`: (r - group mean) / std over the whole batch. A trajectory left alone
    in its group gets 0: there is nothing to compare it with.

    Raises:
        ConfigError: an unknown estimator, or lists of different lengths.
    """
    if estimator not in get_args(Estimator):
        raise ConfigError(f"unknown advantage {estimator!r}; known: {', '.join(get_args(Estimator))}")
    if len(rewards) != len(groups):
        raise ConfigError(f"{len(rewards)} rewards for {len(groups)} group names")
    members: dict[Hashable, list[float]] = {}
    for reward, group in zip(rewards, groups, strict=True):
        if reward is not None:
            members.setdefault(group, []).append(reward)
    spread = _std([reward for reward in rewards if reward is not None])
    return [
        None if reward is None else _advantage(reward, members[group], estimator, spread)
        for reward, group in zip(rewards, groups, strict=True)
    ]


def _advantage(reward: float, group: list[float], estimator: Estimator, batch_std: float) -> float:
    centred = reward - sum(group) / len(group)
    if len(group) == 1:
        return 0.0
    match estimator:
        case "group":
            return centred / (_std(group) + EPSILON)
        case "leave_one_out":
            return centred * len(group) / (len(group) - 1)
        case "batch":
            return centred / (batch_std + EPSILON)
        case _:
            return centred


def _std(values: list[float]) -> float:
    """Sample standard deviation; 0 for fewer than two."""
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
