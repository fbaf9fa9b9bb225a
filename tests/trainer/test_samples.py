"""Samples and advantages: pure functions with promises."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyrl_gym import StopReason, assistant
from skyrl_gym.errors import ConfigError
from skyrl_gym.rollout import Trajectory, Transition, Turn
from skyrl_gym.trainer.advantages import advantages, returns_to_go, turn_advantages
from skyrl_gym.trainer.batching import collate, deal, filled, pack
from skyrl_gym.trainer.samples import Sample, samples_of

ids = st.lists(st.integers(0, 9), max_size=4).map(tuple)


@st.composite
def transitions(draw: Any) -> Transition:
    sampled = draw(ids)
    logprobs = draw(st.none() | st.just(tuple(-0.1 * i for i in range(len(sampled)))))
    first = draw(st.integers(0, 3))
    versions = draw(st.none() | st.just(tuple(first + i for i in range(len(sampled)))))
    return Transition(draw(ids), sampled, logprobs, first, draw(st.booleans()), versions)


def trajectory(steps: list[Transition]) -> Trajectory:
    turns = tuple(Turn(assistant(""), (), step) for step in steps)
    return Trajectory("e", "t", "h", "g", 0, StopReason.DONE, turns=turns, reward=1.0)


@given(st.lists(transitions(), max_size=6))
def test_every_sampled_token_is_trained_once_and_in_its_place(steps: list[Transition]) -> None:
    samples = samples_of(trajectory(steps), 3, 0.5)
    trained = [i for s in samples for i, bit in zip(s.completion_ids, s.mask, strict=True) if bit]
    assert trained == [i for step in steps for i in step.sampled_ids]
    assert [v for s in samples for v in s.versions] == [v for step in steps for v in step.versions]
    assert Trajectory.from_json(json.loads(json.dumps(trajectory(steps).to_json()))) == trajectory(steps)
    prompts = list(trajectory(steps).prompts())
    for sample in samples:
        whole = sample.prompt_ids + sample.completion_ids
        assert len(sample.mask) == len(sample.completion_ids)
        assert sum(sample.mask) == len(sample.versions) == len(sample.turns)
        assert sample.logprobs is None or len(sample.logprobs) == sum(sample.mask)
        assert list(sample.turns) == sorted(sample.turns)
        for turn in set(sample.turns):
            assert whole[: len(prompts[turn])] == prompts[turn]
        assert (sample.trajectory, set(sample.advantages) - {0.5}) == (3, set())
        assert len(sample.advantages) == sum(sample.mask)


def test_missing_logprobs_stay_missing() -> None:
    steps = [Transition((1,), (2,), (-0.5,), fork=True), Transition((3,), (4,), None)]
    (sample,) = samples_of(trajectory(steps), 0, 0.0)
    assert sample.logprobs is None


def test_a_turn_of_full_length_is_not_cut() -> None:
    steps = [Transition((1,), tuple(range(900)), None, fork=i == 0) for i in range(5)]
    (sample,) = samples_of(trajectory(steps), 0, 0.0)
    assert sum(sample.mask) == 4_500


rewards = st.lists(st.none() | st.floats(-5, 5), min_size=1, max_size=12)


@given(rewards, st.sampled_from(["group", "mean", "leave_one_out", "batch"]))
def test_an_infrastructure_failure_changes_no_other_advantage(values: list[float | None], estimator: Any) -> None:
    groups = [i % 3 for i in range(len(values))]
    whole = advantages(values, groups, estimator)
    kept = [i for i, value in enumerate(values) if value is not None]
    without = advantages([values[i] for i in kept], [groups[i] for i in kept], estimator)
    assert [whole[i] for i in kept] == without
    assert all(whole[i] is None for i in range(len(values)) if i not in kept)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8))
def test_within_a_group_they_sum_to_nothing(values: list[float]) -> None:
    for estimator in ("group", "mean", "leave_one_out", "batch"):
        found = advantages(values, ["g"] * len(values), estimator)  # type: ignore[arg-type]
        assert sum(a for a in found if a is not None) == pytest.approx(0, abs=1e-6)


def test_estimators_by_hand() -> None:
    assert advantages([1.0, 0.0], ["g", "g"], "mean") == [0.5, -0.5]
    assert advantages([1.0, 0.0, 0.0], ["g"] * 3, "leave_one_out") == pytest.approx([1.0, -0.5, -0.5])
    assert advantages([3.0, 1.0], ["g", "g"], "group") == pytest.approx([0.7071, -0.7071], abs=1e-3)
    assert advantages([1.0, 1.0], ["g", "g"], "group") == [0.0, 0.0]


def test_an_agents_failure_counts_and_a_trajectory_alone_learns_nothing() -> None:
    assert advantages([1.0, 0.0], ["g", "g"], "mean") != advantages([1.0, None], ["g", "g"], "mean")
    assert advantages([1.0, None], ["g", "g"], "group") == [0.0, None]


@given(rewards, st.sampled_from(["group", "mean", "leave_one_out", "batch"]))
def test_equal_rewards_in_a_group_teach_nothing_whatever_their_rounding(
    values: list[float | None], estimator: Any
) -> None:
    equal = [None if value is None else 0.1 for value in values]
    assert set(advantages(equal, ["g"] * len(values), estimator)) <= {0.0, None}


def test_returns_by_hand() -> None:
    assert returns_to_go([0.0, 1.0, 0.0], 2.0, 1.0) == (3.0, 3.0, 2.0)
    assert returns_to_go([0.0, 1.0, 0.0], 2.0, 0.5) == (1.0, 2.0, 2.0)
    assert returns_to_go([4.0, 1.0], 2.0, 0.0) == (4.0, 3.0)
    assert returns_to_go([], 2.0, 1.0) == ()


turns = st.lists(st.none() | st.integers(1, 4), min_size=1, max_size=8)


@given(turns, st.sampled_from(["group", "mean", "leave_one_out", "batch"]), st.data())
def test_credit_by_turn_without_turn_rewards_is_the_trajectorys(
    lengths: list[int | None], estimator: Any, data: Any
) -> None:
    final = [data.draw(st.integers(0, 3)) / 3 for _ in lengths]
    groups = [i % 2 for i in range(len(lengths))]
    by_turn = [
        None if n is None else returns_to_go([0.0] * n, reward, 1.0) for n, reward in zip(lengths, final, strict=True)
    ]
    whole = advantages(
        [None if n is None else reward for n, reward in zip(lengths, final, strict=True)], groups, estimator
    )
    for n, one, several in zip(lengths, whole, turn_advantages(by_turn, groups, estimator), strict=True):
        assert (several is None) == (n is None)
        assert several is None or several == (one,) * (n or 0)


def test_a_turns_reward_is_credited_to_it_and_to_what_led_there_but_not_to_what_follows() -> None:
    a, b = returns_to_go([0.0, 1.0, 0.0], 0.0, 1.0), returns_to_go([0.0, 0.0, 0.0], 0.0, 1.0)
    first, second = turn_advantages([a, b], ["g", "g"], "mean")
    assert first == (0.5, 0.5, 0.0)
    assert second == (-0.5, -0.5, 0.0)


@given(turns, st.data())
def test_an_infrastructure_failure_changes_no_other_turns_advantage(lengths: list[int | None], data: Any) -> None:
    returns = [None if n is None else tuple(data.draw(st.floats(-2, 2)) for _ in range(n)) for n in lengths]
    kept = [i for i, value in enumerate(returns) if value is not None]
    whole = turn_advantages(returns, ["g"] * len(returns), "leave_one_out")
    without = turn_advantages([returns[i] for i in kept], ["g"] * len(kept), "leave_one_out")
    assert [whole[i] for i in kept] == without


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), max_size=12), st.integers(1, 5), st.integers(1, 60))
def test_packing_keeps_every_sample_once_and_within_the_bounds(
    sizes: list[tuple[int, int]], rows: int, budget: int
) -> None:
    samples = [
        Sample((1,) * p, (2,) * c, (1,) * c, None, (0,) * c, (0,) * c, (0.5,) * c, "t", i)
        for i, (p, c) in enumerate(sizes)
    ]
    chunks = pack(samples, rows, budget)
    assert sorted(s.trajectory for chunk in chunks for s in chunk) == list(range(len(samples)))
    for chunk in chunks:
        tensors = collate(chunk, 0)
        area = tensors["prompt_ids"].numel() + tensors["completion_ids"].numel()
        assert len(chunk) <= rows
        assert len(chunk) == 1 or area <= budget


def test_missing_rows_are_padding_outside_the_loss() -> None:
    sample = Sample((1, 2), (3, 4, 5), (1, 0, 1), (-0.5, -1.0), (0, 0), (0, 1), (0.5, 0.25), "t", 0)
    whole, padded = collate([sample], 9), collate(filled([sample], 3, 9), 9)
    assert {name: value.tolist() for name, value in whole.items()} == {
        name: value[:1].tolist() for name, value in padded.items()
    }
    assert padded["tool_mask"][1:].sum() == padded["advantages"][1:].abs().sum() == 0
    assert padded["advantages"][0].tolist() == [0.5, 0.0, 0.25]


@given(st.integers(0, 9), st.integers(1, 5))
def test_chunks_are_dealt_evenly_and_the_last_micro_step_has_one_if_any(count: int, micro_steps: int) -> None:
    dealt = deal(range(count), micro_steps)
    assert sorted(chunk for step in dealt for chunk in step) == list(range(count))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    assert len(dealt) == micro_steps and bool(dealt[-1]) == (count > 0)


def test_wrong_input_is_named() -> None:
    with pytest.raises(ConfigError, match="unknown advantage 'gae'"):
        advantages([1.0], ["g"], "gae")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="2 rewards for 1 group"):
        advantages([1.0, 2.0], ["g"], "mean")
