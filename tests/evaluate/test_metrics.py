"""What is counted, what is not, and that nothing unjudged becomes 0."""

import json
from collections.abc import Callable
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyrl_gym.errors import StopReason
from skyrl_gym.evaluate import Summary, difference, pass_at_k, summarise
from skyrl_gym.messages import assistant
from skyrl_gym.rollout import Trajectory, Transition, Turn

Make = Callable[..., Trajectory]
Rewards = list[list[float | None]]

# Rewards of some tasks; None is a trajectory whose machinery failed.
TASKS = st.lists(st.lists(st.none() | st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=5), min_size=1, max_size=6)


def trajectories_of(tasks: Rewards) -> list[Trajectory]:
    return [
        Trajectory(
            env_id="guess-v0",
            task_id=f"task-{t}",
            task_hash=f"hash-{t}",
            group=str(t),
            sample=i,
            stop_reason=StopReason.GRADE_ERROR if reward is None else StopReason.DONE,
            reward=reward,
            policy="model",
        )
        for t, rewards in enumerate(tasks)
        for i, reward in enumerate(rewards)
    ]


@given(tasks=TASKS)
def test_excluded_trajectories_change_no_number(tasks: Rewards) -> None:
    everything = summarise(trajectories_of(tasks), (1, 2))
    judged = summarise([t for t in trajectories_of(tasks) if t.reward is not None], (1, 2))
    assert everything.reward == judged.reward
    assert everything.pass_at == judged.pass_at
    assert everything.judged == judged.total
    assert everything.excluded == sum(reward is None for rewards in tasks for reward in rewards)


@given(tasks=TASKS, k=st.integers(1, 4))
def test_pass_at_k_is_over_the_tasks_that_have_k(tasks: Rewards, k: int) -> None:
    found = summarise(trajectories_of(tasks), (k,)).pass_at[k]
    judged = [[r for r in rewards if r is not None] for rewards in tasks]
    values = [pass_at_k(len(r), r.count(1.0), k) for r in judged if len(r) >= k]
    assert found.tasks == len(values)
    assert found.value == (pytest.approx(fmean(values)) if values else None)


@given(tasks=TASKS)
def test_a_summary_survives_json(tasks: Rewards) -> None:
    summary = summarise(trajectories_of(tasks), (1, 2))
    assert Summary.from_json(json.loads(json.dumps(summary.to_json()))) == summary


def test_counts(make: Make) -> None:
    step = Transition((1, 2), (3, 4, 5), None)
    summary = summarise(
        [
            make(1.0, "a", 0, metrics={"f1": 0.5}),
            make(0.0, "a", 1, stop_reason=StopReason.MAX_TURNS, metrics={"f1": 0.0}),
            make(None, "b", 0, stop_reason=StopReason.POLICY_ERROR, turns=()),
            make(None, "b", 1, turns=(Turn(assistant("x"), transition=step),)),
        ],
        (1, 2),
    )
    assert (summary.tasks, summary.total, summary.judged, summary.excluded) == (2, 4, 2, 2)
    assert summary.excluded_by == {"policy_error": 1, "sandbox_lost": 1}
    assert summary.outcomes == {"done": 1, "max_turns": 1, "policy_error": 1, "sandbox_lost": 1}
    assert summary.reward.value == 0.5 and summary.reward.low is None
    assert summary.pass_at[2].value == 1.0 and summary.pass_at[2].tasks == 1
    assert summary.metrics == {"f1": 0.25}
    assert summary.sampled_tokens == 3 and summary.turns == 1.25
    assert not summary.starved


def test_nothing_judged_is_starved_and_has_no_number(make: Make) -> None:
    summary = summarise([make(None), make(None, sample=1)], (1,))
    assert summary.starved
    assert summary.reward.value is None and summary.pass_at[1].value is None
    assert summarise([]).starved


def test_a_reward_that_is_no_number_is_a_failure_of_the_grader(make: Make) -> None:
    summary = summarise([make(float("nan")), make(0.5, sample=1), make(float("inf"), "b")])
    assert summary.judged == 1 and summary.reward.value == 0.5
    assert summary.excluded_by == {"grade_error": 2}


def test_the_threshold_says_what_passes(make: Make) -> None:
    trajectories = [make(0.6), make(0.4, "b")]
    assert summarise(trajectories).pass_at[1].value == 0.0
    assert summarise(trajectories, threshold=0.5).pass_at[1].value == 0.5


def test_the_difference_is_paired_by_task(make: Make) -> None:
    """Tasks of very different difficulty, each a little better: sure, though both intervals overlap."""
    before = summarise([make(0.1 * i, str(i)) for i in range(8)])
    after = summarise([make(0.1 * i + 0.05 + 0.001 * (i % 2), str(i)) for i in range(8)])
    found = difference(before, after)
    assert found.value == pytest.approx(0.0505) and found.tasks == 8
    assert found.low is not None and found.low > 0.049
    assert before.reward.high is not None and after.reward.low is not None and before.reward.high > after.reward.low


def test_the_difference_leaves_out_what_only_one_has(make: Make) -> None:
    before = summarise([make(0.0, "a"), make(0.0, "a", 1), make(1.0, "gone"), make(0.0, "b")])
    after = summarise([make(1.0, "a"), make(0.0, "a", 1), make(1.0, "new"), make(1.0, "b")])
    assert difference(before, after).tasks == 2
    assert difference(before, after, 2).value == 1.0 and difference(before, after, 2).tasks == 1
    assert difference(before, summarise([make(1.0, "new")])).value is None
