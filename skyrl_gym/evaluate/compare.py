"""Two evaluations of the same tasks, task by task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from skyrl_gym.errors import ConfigError
from skyrl_gym.evaluate.estimates import Estimate
from skyrl_gym.evaluate.metrics import Summary, TaskScore, default_ks, difference, summarise
from skyrl_gym.evaluate.paired import detectable_difference, mcnemar, sign_flip
from skyrl_gym.evaluate.runs import Run
from skyrl_gym.rollout import Trajectory

__all__ = ["Comparison", "TaskPair", "compare"]

# How a model writes its calls belongs to the model; the rest of an environment's settings to the environment.
OF_THE_MODEL = frozenset({"dialect", "render_mode"})


@dataclass(frozen=True, slots=True)
class TaskPair:
    """A task that both evaluations have a judged trajectory of."""

    before: TaskScore
    after: TaskScore

    @property
    def change(self) -> float:
        """Of the mean reward."""
        return self.after.reward - self.before.reward


@dataclass(frozen=True)
class Comparison:
    """What two evaluations say about each other; everything is over the tasks in `pairs`, by content hash.

    `left_out` counts the tasks that one of the two has no judged trajectory of.
    """

    before: Summary
    after: Summary
    pairs: Mapping[str, TaskPair]
    left_out: int

    @cached_property
    def change(self) -> Estimate:
        """Of the mean reward, with its interval over tasks."""
        return difference(self.before, self.after)

    @cached_property
    def p_reward(self) -> float:
        """That chance alone gives as large a change of the mean reward: a permutation test over tasks."""
        return sign_flip([pair.change for pair in self.pairs.values()])

    @property
    def gained(self) -> list[TaskPair]:
        """Tasks that only the second solves."""
        return [pair for pair in self.pairs.values() if pair.after.solved and not pair.before.solved]

    @property
    def lost(self) -> list[TaskPair]:
        """Tasks that only the first solves."""
        return [pair for pair in self.pairs.values() if pair.before.solved and not pair.after.solved]

    @property
    def p_solved(self) -> float:
        """That chance alone makes gains and losses as uneven: McNemar's exact test."""
        return mcnemar(len(self.gained), len(self.lost))

    @property
    def detectable(self) -> float | None:
        """The least true change of the mean reward that four of five such comparisons would show."""
        return detectable_difference(self.change)

    def to_json(self) -> dict[str, Any]:
        """JSON values: the results, and every paired task."""
        ks = sorted(set(self.before.pass_at) & set(self.after.pass_at))
        return {
            "env_id": self.after.env_id,
            "policies": [self.before.policy, self.after.policy],
            "tasks": len(self.pairs),
            "left_out": self.left_out,
            "judged": [self.before.judged, self.after.judged],
            "total": [self.before.total, self.after.total],
            "reward": {
                "before": asdict(self.before.reward),
                "after": asdict(self.after.reward),
                "change": asdict(self.change),
                "p": self.p_reward,
                "detectable": self.detectable,
            },
            "pass_at": {str(k): asdict(difference(self.before, self.after, k)) for k in ks},
            "pass_all": {str(k): asdict(difference(self.before, self.after, k, every=True)) for k in ks},
            "solved": {"gained": len(self.gained), "lost": len(self.lost), "p": self.p_solved},
            "by_task": {
                task: {"id": pair.after.task_id, "before": asdict(pair.before), "after": asdict(pair.after)}
                for task, pair in self.pairs.items()
            },
        }


def compare(before: Run, after: Run, *, common: bool = False) -> Comparison:
    """Compares two evaluations, read from their trajectories.

    Args:
        before, after: run folders of evaluations.
        common: compare what both have, where their tasks or the settings of their environment differ.

    Raises:
        ConfigError: they are of different environments, settings or tasks, or nothing of both was judged.
    """
    for run in (before, after):
        if run.kind != "eval":
            raise ConfigError(f"{run.path} is no evaluation; a training's are {run.path}/eval/before and .../after")
    _check_environment(before, after, common)
    (first, old), (second, new) = _read(before), _read(after)
    if old != new and not common:
        raise ConfigError(
            f"{before.path} has {len(old):,} tasks and {after.path} {len(new):,}, {len(old & new):,} in common: "
            "evaluate both on the same tasks, or give --common to compare what both have"
        )
    pairs = {task: TaskPair(first.scores[task], second.scores[task]) for task in first.scores if task in second.scores}
    if not pairs:
        raise ConfigError(
            f"{before.path} and {after.path} have no task of which both have a judged trajectory "
            f"(judged are {first.judged} and {second.judged})"
        )
    return Comparison(first, second, pairs, len(old | new) - len(pairs))


def _check_environment(before: Run, after: Run, common: bool) -> None:
    ids = [run.config.get("env_id") for run in (before, after)]
    if ids[0] != ids[1]:
        raise ConfigError(f"{before.path} is of {ids[0]}, {after.path} of {ids[1]}: only the same tasks compare")
    old, new = (_settings(run) for run in (before, after))
    differing = [f"{key} ({old.get(key)!r}, {new.get(key)!r})" for key in old | new if old.get(key) != new.get(key)]
    if differing and not common:
        raise ConfigError(
            f"{before.path} and {after.path} have other settings of {ids[0]}: {', '.join(differing)}; "
            "--common compares them on the tasks that both have"
        )


def _settings(run: Run) -> dict[str, Any]:
    kwargs = run.config.get("env_kwargs") or {}
    return {key: value for key, value in kwargs.items() if key not in OF_THE_MODEL}


def _read(run: Run) -> tuple[Summary, set[str]]:
    """The summary, and the tasks that were tried."""
    tried: set[str] = set()

    def watched() -> Iterator[Trajectory]:
        for trajectory in run.trajectories():
            tried.add(trajectory.task_hash)
            yield trajectory

    return summarise(watched(), default_ks(run.tries)), tried
