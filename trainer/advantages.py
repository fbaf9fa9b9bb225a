"""Rewards -> advantages, within the group of a task. An excluded trajectory is as if it had never been."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import sqrt
from typing import Literal, TypeAlias, get_args

from skyrl_gym.errors import ConfigError

__all__ = ["Estimator", "advantages", "returns_to_go", "turn_advantages"]

Estimator: TypeAlias = Literal["group", "mean", "leave_one_out", "batch"]
EPSILON = 1e-4  # as in TRL, so that "group" equals its scale_rewards="group"


def advantages(rewards: Sequence[float | None], groups: Sequence[Hashable], estimator: Estimator) -> list[float | None]:
    """One advantage for each reward; None (excluded) stays None.

    `group`: (r - mean) / std of the group (GRPO). `mean`: r - mean (Dr. GRPO). `leave_one_out`: r minus the
    mean of the others (RLOO). `batch`: (r - group mean) / std over the whole batch. A trajectory left alone
    in its group gets 0, for there is nothing to compare it with; so does each of a group of equal rewards.

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


def returns_to_go(turn_rewards: Sequence[float], final: float, discount: float) -> tuple[float, ...]:
    """What is still to come at each turn: its own reward, and the later ones discounted once a turn.

    Args:
        turn_rewards: one for each turn.
        final: the grade, earned at the last turn.
        discount: from 0 (only the turn's own reward) to 1.
    """
    found: list[float] = []
    ahead = 0.0
    for position, reward in enumerate(reversed(turn_rewards)):
        ahead = reward + (final if position == 0 else discount * ahead)
        found.append(ahead)
    return tuple(reversed(found))


def turn_advantages(
    returns: Sequence[tuple[float, ...] | None], groups: Sequence[Hashable], estimator: Estimator
) -> list[tuple[float, ...] | None]:
    """One advantage for each turn, against the same turn of the others in the group.

    A trajectory that has ended stands in the later comparisons with its last return. So returns that don't
    change from turn to turn give what `advantages` gives, and one return each (whole trajectories) is a
    special case.
    """
    width = max((len(turns) for turns in returns if turns), default=0)
    columns = [
        advantages([turns[min(turn, len(turns) - 1)] if turns else None for turns in returns], groups, estimator)
        for turn in range(width)
    ]
    return [
        tuple(value for column in columns[: len(turns)] if (value := column[i]) is not None) if turns else None
        for i, turns in enumerate(returns)
    ]


def _advantage(reward: float, group: list[float], estimator: Estimator, batch_std: float) -> float:
    if min(group) == max(group):  # said exactly: the mean of equal numbers may differ from them in the last digit
        return 0.0
    centred = reward - sum(group) / len(group)
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
