"""Estimates with 95 % intervals. The task is the unit: trajectories of one task are not independent."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from math import comb, cos, fsum, pi, sin, sqrt, tan

__all__ = ["Estimate", "mean_of_tasks", "pass_all_k", "pass_at_k", "share_of_tasks", "t_quantile"]

TAIL = 0.025  # outside a 95 % interval, on each side


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over `tasks` tasks and its 95 % interval.

    `value` is None when there was no task; the bounds are None where the data give the interval no width
    (one task, or the same value on every task), which is not the same as certainty.
    """

    value: float | None
    low: float | None
    high: float | None
    tasks: int


def mean_of_tasks(values: Collection[float]) -> Estimate:
    """The mean of one value a task, with Student's t interval.

    A value is a task's own mean, so each task weighs the same however many of its trajectories were judged.
    With equally many it is the mean over all trajectories with the cluster-robust standard error.
    """
    count = len(values)
    if not count:
        return Estimate(None, None, None, 0)
    mean = fsum(values) / count
    squares = fsum((value - mean) ** 2 for value in values)
    if count == 1 or squares <= 1e-24 * count * max(1.0, mean * mean):
        return Estimate(mean, None, None, count)
    half = t_quantile(count - 1) * sqrt(squares / (count - 1) / count)
    return Estimate(mean, mean - half, mean + half, count)


def share_of_tasks(values: Collection[float]) -> Estimate:
    """`mean_of_tasks` for values from 0 to 1: the interval stays in that range.

    Where every task has 0, or every task 1, it is the exact binomial interval (Clopper and Pearson 1934).
    """
    plain = mean_of_tasks(values)
    if plain.value is None:
        return plain
    unseen = 1.0 - TAIL ** (1.0 / plain.tasks)
    if plain.value in (0.0, 1.0):
        return Estimate(plain.value, max(0.0, plain.value - unseen), min(1.0, plain.value + unseen), plain.tasks)
    if plain.low is None or plain.high is None:
        return plain
    return Estimate(plain.value, max(0.0, plain.low), min(1.0, plain.high), plain.tasks)


def pass_at_k(n: int, passed: int, k: int) -> float:
    """The probability that of k trajectories drawn from n without replacement at least one is a pass.

    The unbiased estimate for k independent tries (Chen et al. 2021, arXiv 2107.03374).

    Raises:
        ValueError: fewer than k trajectories, or more passes than trajectories.
    """
    if not (1 <= k <= n and 0 <= passed <= n):
        raise ValueError(f"pass@{k} needs at least {k} judged trajectories of a task; got {passed} passes of {n}")
    return 1.0 - comb(n - passed, k) / comb(n, k)


def pass_all_k(n: int, passed: int, k: int) -> float:
    """The probability that k trajectories drawn from n without replacement are all passes: pass^k.

    The unbiased estimate for k independent tries (Yao et al. 2024, arXiv 2406.12045).

    Raises:
        ValueError: as `pass_at_k`.
    """
    if not (1 <= k <= n and 0 <= passed <= n):
        raise ValueError(f"pass^{k} needs at least {k} judged trajectories of a task; got {passed} passes of {n}")
    return comb(passed, k) / comb(n, k)


@lru_cache(maxsize=1024)
def t_quantile(degrees: int, tail: float = TAIL) -> float:
    """The quantile of Student's t distribution that leaves `tail` (below one half) above it."""
    low, high = 0.0, pi / 2
    while high - low > 1e-13:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < 1 - 2 * tail else (low, middle)
    return tan((low + high) / 2) * sqrt(degrees)


def _within(theta: float, degrees: int) -> float:
    """P(|T| < sqrt(degrees) tan theta), a finite sum (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    odd = degrees % 2
    term = cos(theta) if odd else 1.0
    total = 0.0 if degrees == 1 else term
    for i in range(2 + odd, degrees - 1, 2):
        term *= cos(theta) ** 2 * (i - 1) / i
        total += term
    return 2 / pi * (theta + sin(theta) * total) if odd else sin(theta) * total
