"""Estimates against brute force and simulation."""

import random
from itertools import combinations
from math import comb, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyrl_gym.evaluate.estimates import (
    Estimate,
    mean_of_tasks,
    pass_all_k,
    pass_at_k,
    share_of_tasks,
    t_quantile,
)

NUMBERS = st.floats(-100, 100)


@given(n=st.integers(1, 8), data=st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_pass(n: int, data: st.DataObject) -> None:
    passed, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    draws = list(combinations([True] * passed + [False] * (n - passed), k))
    assert pass_at_k(n, passed, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_k_is_unbiased() -> None:
    """Its expectation over binomial outcomes is the true probability that one of k tries passes."""
    n, k, p = 6, 3, 0.3
    expected = sum(comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1))
    assert expected == pytest.approx(1 - (1 - p) ** k)


@given(n=st.integers(1, 8), data=st.data())
def test_pass_all_k_is_the_share_of_draws_that_all_pass(n: int, data: st.DataObject) -> None:
    passed, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    draws = list(combinations([True] * passed + [False] * (n - passed), k))
    assert pass_all_k(n, passed, k) == pytest.approx(sum(map(all, draws)) / len(draws))


def test_pass_all_k_is_unbiased() -> None:
    n, k, p = 6, 3, 0.7
    expected = sum(comb(n, c) * p**c * (1 - p) ** (n - c) * pass_all_k(n, c, k) for c in range(n + 1))
    assert expected == pytest.approx(p**k)


@pytest.mark.parametrize(("n", "passed", "k"), [(3, 1, 4), (3, 1, 0), (3, 4, 1), (0, 0, 1)])
def test_pass_at_k_and_pass_all_k_refuse_what_they_cannot_estimate(n: int, passed: int, k: int) -> None:
    for estimate in (pass_at_k, pass_all_k):
        with pytest.raises(ValueError, match="needs at least"):
            estimate(n, passed, k)


# From the table in any statistics textbook.
@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423), (120, 1.9799), (5_000, 1.9604)],
)
def test_t_quantiles_are_those_of_the_table(degrees: int, quantile: float) -> None:
    assert t_quantile(degrees) == pytest.approx(quantile, abs=5e-5)


@given(st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=2, max_size=8))
def test_with_equal_clusters_the_interval_is_the_cluster_robust_one(clusters: list[list[float]]) -> None:
    found = mean_of_tasks([sum(cluster) / 3 for cluster in clusters])
    count = 3 * len(clusters)
    mean = sum(map(sum, clusters)) / count
    assert found.value == pytest.approx(mean, abs=1e-9)
    if found.low is None or found.high is None:
        return
    scores = [sum(value - mean for value in cluster) for cluster in clusters]
    robust = sqrt(len(clusters) / (len(clusters) - 1) * sum(score**2 for score in scores)) / count
    assert found.high - found.low == pytest.approx(2 * t_quantile(len(clusters) - 1) * robust, rel=1e-6, abs=1e-9)


def test_no_task_one_task_and_no_spread_have_no_interval() -> None:
    assert mean_of_tasks([]) == Estimate(None, None, None, 0)
    assert mean_of_tasks([0.5]) == Estimate(0.5, None, None, 1)
    assert mean_of_tasks([0.1] * 7).low is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_a_share_stays_between_0_and_1(values: list[float]) -> None:
    found = share_of_tasks(values)
    if found.low is not None and found.high is not None and found.value is not None:
        assert 0 <= found.low <= found.value <= found.high <= 1


def test_all_passed_is_not_certainty() -> None:
    found = share_of_tasks([1.0] * 10)
    assert found.high == 1.0
    assert found.low == pytest.approx(0.6915, abs=1e-4)  # Clopper-Pearson for 10 of 10
    none = share_of_tasks([0.0] * 10)
    assert none.low == 0.0 and none.high == pytest.approx(0.3085, abs=1e-4)


def test_the_interval_holds_the_truth_95_times_in_100() -> None:
    """Tasks differ in difficulty; an interval over single trajectories would be too narrow."""
    rng = random.Random(1)
    held = naive = 0
    for _ in range(1_000):
        tasks = [rng.betavariate(0.8, 0.8) for _ in range(25)]  # mean 0.5
        rewards = [[float(rng.random() < p) for _ in range(8)] for p in tasks]
        found = mean_of_tasks([sum(r) / 8 for r in rewards])
        assert found.value is not None and found.low is not None and found.high is not None
        held += found.low <= 0.5 <= found.high
        half = 1.96 * sqrt(found.value * (1 - found.value) / 200)
        naive += abs(found.value - 0.5) <= half
    assert 930 <= held <= 970
    assert naive < 750
