"""Tests for two evaluations of the same tasks: is the second one better, or is it chance?"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, erfc, fsum, sqrt

from skyrl_gym.evaluate.estimates import Estimate, t_quantile

__all__ = ["detectable_difference", "mcnemar", "sign_flip"]

EXACT = 16
"""Up to so many differences every assignment of signs is tried."""

NORMAL = 1_000
"""From so many on the sum is as good as normal."""

DRAWS = 20_000
POWER = 0.8


def mcnemar(gained: int, lost: int) -> float:
    """The two-sided exact p-value of McNemar's test (1947): are gains and losses equally likely?"""
    flips = gained + lost
    tail = sum(comb(flips, i) for i in range(min(gained, lost) + 1))
    return min(1.0, tail / (1 << max(flips - 1, 0)))


def sign_flip(differences: Sequence[float]) -> float:
    """The two-sided p-value of the permutation test over tasks: had either policy been the other, by chance?

    Exact for few differences, drawn (always the same draws) for more, normal for many. Of single trajectories
    that pass or fail it is McNemar's test.
    """
    import numpy as np

    changed = np.array([value for value in differences if value])
    if not len(changed):
        return 1.0
    observed = abs(fsum(changed)) - 1e-9
    if len(changed) >= NORMAL:
        return erfc(observed / sqrt(2 * float(changed @ changed)))
    if len(changed) <= EXACT:
        numbers = np.arange(2 ** len(changed))[:, None]
        flipped = (numbers >> np.arange(len(changed))) & 1
        return float(np.mean(np.abs((1 - 2 * flipped) @ changed) >= observed))
    rng = np.random.default_rng(0)
    sums = np.array([rng.choice((-1, 1), len(changed)) @ changed for _ in range(DRAWS)])
    return (int((np.abs(sums) >= observed).sum()) + 1) / (DRAWS + 1)


def detectable_difference(change: Estimate) -> float | None:
    """The least true difference that four of five such comparisons would show at the 5 % level.

    From the spread of the differences that were seen; None where they had none.
    """
    if change.low is None or change.high is None or change.tasks < 2:
        return None
    degrees = change.tasks - 1
    error = (change.high - change.low) / 2 / t_quantile(degrees)
    return error * (t_quantile(degrees) + t_quantile(degrees, 1 - POWER))
