"""What a stream of trajectories amounts to: mean reward, pass@k, and how the episodes ended.

What was not judged is never counted as 0: excluded trajectories are in no mean, and are counted by their ending.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from typing import Any

from skyrl_gym.errors import StopReason
from skyrl_gym.evaluate.estimates import Estimate, mean_of_tasks, pass_all_k, pass_at_k, share_of_tasks
from skyrl_gym.evaluate.spending import Spending
from skyrl_gym.rollout import Trajectory

__all__ = ["PASSED", "Summary", "TaskScore", "default_ks", "difference", "is_judged", "summarise"]

PASSED = 1.0
"""The least reward that is a pass, unless `summarise` is told another."""


@dataclass(frozen=True, slots=True)
class TaskScore:
    """One task: how many of its trajectories were judged and passed, their mean reward, and the task's id."""

    judged: int
    passed: int
    reward: float
    task_id: str = ""

    @property
    def solved(self) -> bool:
        """More than half of the judged trajectories passed."""
        return 2 * self.passed > self.judged


@dataclass(frozen=True)
class Summary:
    """One evaluation in numbers.

    `tasks` and `total` count everything that was tried, `judged` what has a reward. `pass_at` holds pass@k (one
    of k tries passes), `pass_all` pass^k (all of them do). A task with fewer than k judged trajectories has
    neither: `pass_at[k].tasks` says how many have one. `outcomes` counts every
    trajectory by its ending; `scores` has one entry a judged task, by its content hash; `turns`, `metrics` and
    `seconds` (by stage) are means over trajectories, `by_seed` the mean reward of each where there are several.
    `not_run` trajectories were asked for and not made, because of what `stopped` says.
    """

    env_id: str
    policy: str
    tasks: int
    total: int
    judged: int
    reward: Estimate
    pass_at: Mapping[int, Estimate]
    outcomes: Mapping[str, int]
    pass_all: Mapping[int, Estimate] = field(default_factory=dict)
    scores: Mapping[str, TaskScore] = field(default_factory=dict)
    threshold: float = PASSED
    sampled_tokens: int = 0
    turns: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    by_seed: Mapping[str, float] = field(default_factory=dict)
    not_run: int = 0
    stopped: str = ""
    spending: Spending | None = None

    @property
    def wanted(self) -> int:
        """Trajectories that were asked for."""
        return self.total + self.not_run

    @property
    def excluded(self) -> int:
        """Trajectories whose reward does not count."""
        return self.total - self.judged

    @property
    def excluded_by(self) -> dict[str, int]:
        """The excluded trajectories by their ending."""
        return {reason: count for reason, count in self.outcomes.items() if not StopReason(reason).valid}

    @property
    def starved(self) -> bool:
        """Nothing was judged: there is no result."""
        return self.judged == 0

    def to_json(self) -> dict[str, Any]:
        """JSON values; `from_json` gives an equal summary back."""
        return asdict(self) | {
            name: {str(k): asdict(estimate) for k, estimate in estimates.items()}
            for name, estimates in (("pass_at", self.pass_at), ("pass_all", self.pass_all))
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Summary:
        """A summary from its JSON values."""
        parts = {
            "reward": Estimate(**data["reward"]),
            "pass_at": _estimates(data["pass_at"]),
            "pass_all": _estimates(data.get("pass_all", {})),
            "spending": Spending(**data["spending"]) if data.get("spending") else None,
            "scores": {task: TaskScore(**score) for task, score in data["scores"].items()},
        }
        return cls(**{**data, **parts})


def is_judged(trajectory: Trajectory) -> bool:
    """Whether the reward counts: a grader that answers with no finite number has failed."""
    return trajectory.valid and trajectory.reward is not None and isfinite(trajectory.reward)


def summarise(
    trajectories: Iterable[Trajectory],
    ks: Sequence[int] = (1,),
    threshold: float = PASSED,
    seeds: Sequence[int] = (),
    samples: int = 1,
) -> Summary:
    """The summary of a stream; of each trajectory only numbers are kept.

    Args:
        trajectories: in any order.
        ks: for which k to estimate pass@k and pass^k.
        threshold: the least reward that is a pass.
        seeds, samples: several seeds, and how many trajectories of a task each has, one seed after the other.
    """
    tally = _Tally()
    for trajectory in trajectories:
        tally.add(trajectory)
    summary = tally.summary(ks, threshold)
    return replace(summary, by_seed=tally.by_seed(seeds, samples)) if len(seeds) > 1 else summary


def default_ks(samples: int) -> tuple[int, ...]:
    """For which k a run of so many samples a task is estimated: the powers of two."""
    return tuple(2**power for power in range(samples.bit_length()))


def difference(before: Summary, after: Summary, k: int | None = None, *, every: bool = False) -> Estimate:
    """How much `after` is above `before` in mean reward, or in pass@k (pass^k if `every`), task by task.

    Pairing takes the tasks' own difficulty out of the interval. Only tasks that both have are compared.
    """
    pairs = [(before.scores[task], after.scores[task]) for task in before.scores if task in after.scores]
    if k is None:
        return mean_of_tasks([new.reward - old.reward for old, new in pairs])
    estimate = pass_all_k if every else pass_at_k
    return mean_of_tasks(
        [
            estimate(new.judged, new.passed, k) - estimate(old.judged, old.passed, k)
            for old, new in pairs
            if min(old.judged, new.judged) >= k
        ]
    )


class _Tally:
    """The numbers of the trajectories seen so far."""

    def __init__(self) -> None:
        self.env_ids: dict[str, None] = {}
        self.policies: dict[str, None] = {}
        self.tasks: dict[str, str] = {}  # ids by content hash
        self.rewards: dict[str, list[float]] = defaultdict(list)
        self.outcomes: Counter[str] = Counter()
        self.metrics: dict[str, _Mean] = defaultdict(_Mean)
        self.seconds: dict[str, _Mean] = defaultdict(_Mean)
        self.samples: dict[int, _Mean] = defaultdict(_Mean)
        self.turns = _Mean()
        self.sampled_tokens = 0

    def add(self, trajectory: Trajectory) -> None:
        self.env_ids[trajectory.env_id] = self.policies[trajectory.policy] = None
        self.tasks.setdefault(trajectory.task_hash, trajectory.task_id)
        self.turns.add(len(trajectory.turns))
        self.sampled_tokens += trajectory.sampled_tokens
        for stage, taken in trajectory.seconds.items():
            self.seconds[stage].add(taken)
        if is_judged(trajectory):
            self._add_judged(trajectory)
        self.outcomes[_ending(trajectory).value] += 1

    def _add_judged(self, trajectory: Trajectory) -> None:
        assert trajectory.reward is not None
        self.rewards[trajectory.task_hash].append(trajectory.reward)
        self.samples[trajectory.sample].add(trajectory.reward)
        for name, value in trajectory.metrics.items():
            if isfinite(value):
                self.metrics[name].add(value)

    def by_seed(self, seeds: Sequence[int], samples: int) -> dict[str, float]:
        found: dict[str, float] = {}
        for place, seed in enumerate(seeds):
            means = [self.samples[i] for i in range(place * samples, (place + 1) * samples) if i in self.samples]
            if means:
                found[str(seed)] = sum(mean.sum for mean in means) / sum(mean.count for mean in means)
        return found

    def summary(self, ks: Sequence[int], threshold: float) -> Summary:
        scores = {task: _score(rewards, threshold, self.tasks[task]) for task, rewards in self.rewards.items()}
        return Summary(
            env_id=", ".join(self.env_ids),
            policy=", ".join(self.policies),
            tasks=len(self.tasks),
            total=self.outcomes.total(),
            judged=sum(score.judged for score in scores.values()),
            reward=mean_of_tasks([score.reward for score in scores.values()]),
            pass_at={k: _passes(pass_at_k, k, scores.values()) for k in ks},
            pass_all={k: _passes(pass_all_k, k, scores.values()) for k in ks},
            outcomes=dict(self.outcomes.most_common()),
            scores=scores,
            threshold=threshold,
            sampled_tokens=self.sampled_tokens,
            turns=self.turns.value,
            metrics={name: mean.value for name, mean in sorted(self.metrics.items())},
            seconds={stage: mean.value for stage, mean in self.seconds.items()},
        )


class _Mean:
    """A running mean; 0 of nothing."""

    def __init__(self) -> None:
        self.sum = 0.0
        self.count = 0

    def add(self, value: float) -> None:
        self.sum += value
        self.count += 1

    @property
    def value(self) -> float:
        return self.sum / self.count if self.count else 0.0


def _ending(trajectory: Trajectory) -> StopReason:
    failed_grader = trajectory.stop_reason.valid and not is_judged(trajectory)
    return StopReason.GRADE_ERROR if failed_grader else trajectory.stop_reason


def _score(rewards: Sequence[float], threshold: float, task_id: str) -> TaskScore:
    passed = sum(reward >= threshold for reward in rewards)
    return TaskScore(len(rewards), passed, sum(rewards) / len(rewards), task_id)


def _passes(estimate: Callable[[int, int, int], float], k: int, scores: Iterable[TaskScore]) -> Estimate:
    return share_of_tasks([estimate(s.judged, s.passed, k) for s in scores if s.judged >= k])


def _estimates(data: Mapping[str, Any]) -> dict[int, Estimate]:
    return {int(k): Estimate(**estimate) for k, estimate in data.items()}
