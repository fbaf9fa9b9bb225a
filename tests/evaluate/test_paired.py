"""Paired tests against brute force, tables and simulation."""

import random
from itertools import product
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyrl_gym.evaluate import paired
from skyrl_gym.evaluate.estimates import Estimate, mean_of_tasks
from skyrl_gym.evaluate.paired import detectable_difference, mcnemar, sign_flip

CHANGES = st.lists(st.sampled_from([-1.0, -0.5, -0.25, 0.0, 0.25, 0.5, 1.0]), max_size=9)


@given(CHANGES)
def test_the_permutation_test_counts_the_signs_that_give_as_much(changes: list[float]) -> None:
    sums = [
        abs(sum(s * c for s, c in zip(signs, changes, strict=True))) for signs in product((1, -1), repeat=len(changes))
    ]
    assert sign_flip(changes) == pytest.approx(sum(s >= abs(sum(changes)) - 1e-9 for s in sums) / len(sums))


@given(gained=st.integers(0, 8), lost=st.integers(0, 8), same=st.integers(0, 5))
def test_of_single_passes_it_is_mcnemars_test(gained: int, lost: int, same: int) -> None:
    assert sign_flip([1.0] * gained + [-1.0] * lost + [0.0] * same) == pytest.approx(mcnemar(gained, lost))


# Two-sided binomial tests at one half, as R's binom.test gives them.
@pytest.mark.parametrize(
    ("gained", "lost", "p"),
    [(0, 0, 1.0), (5, 5, 1.0), (10, 0, 0.001953), (12, 3, 0.03516), (3, 12, 0.03516), (1, 0, 1.0)],
)
def test_mcnemar_by_the_table(gained: int, lost: int, p: float) -> None:
    assert mcnemar(gained, lost) == pytest.approx(p, abs=5e-6)


def test_drawn_and_normal_agree_with_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = [1.0] * 11 + [-1.0] * 5
    exact = sign_flip(changes)
    assert exact == pytest.approx(2 * sum(comb(16, i) for i in range(6)) / 2**16)
    monkeypatch.setattr(paired, "EXACT", 1)
    assert sign_flip(changes) == pytest.approx(exact, abs=0.01) == sign_flip(changes)
    many = [0.5] * 540 + [-0.5] * 459
    drawn = sign_flip(many)
    monkeypatch.setattr(paired, "NORMAL", 1)
    assert sign_flip(many) == pytest.approx(drawn, abs=0.005)


def test_without_a_difference_chance_is_found_guilty_19_times_in_20() -> None:
    rng = random.Random(2)
    false = sum(sign_flip([rng.choice((-1.0, 0.0, 1.0)) for _ in range(20)]) < 0.05 for _ in range(300))
    assert false <= 25  # 15 expected


def test_a_detectable_difference_is_found_4_times_in_5() -> None:
    rng = random.Random(3)
    size = 0.24
    found, told = 0, []
    for _ in range(300):
        change = mean_of_tasks([rng.gauss(size, 0.6) for _ in range(50)])
        assert change.low is not None
        found += change.low > 0
        told.append(detectable_difference(change) or 0.0)
    assert 0.75 <= found / 300 <= 0.85
    assert sum(told) / 300 == pytest.approx(size, abs=0.01)


def test_without_spread_nothing_is_said_of_what_can_be_detected() -> None:
    assert detectable_difference(Estimate(0.5, None, None, 9)) is None
    assert detectable_difference(Estimate(None, None, None, 0)) is None
