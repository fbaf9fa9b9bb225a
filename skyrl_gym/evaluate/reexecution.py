"""Re-executing the recorded actions of a run in fresh environments, without the model that chose them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from skyrl_gym.errors import ConfigError, StopReason
from skyrl_gym.evaluate.runs import Run
from skyrl_gym.evaluate.scripts import Played, ScriptPlayer, each
from skyrl_gym.policy import Completion
from skyrl_gym.registration import make_env
from skyrl_gym.rollout import Deadlines, RolloutRequest, Trajectory
from skyrl_gym.tasks import TaskSet

__all__ = ["Reexecution", "has_ended", "reexecute"]


@dataclass(frozen=True, slots=True)
class Reexecution:
    """A recorded trajectory and what its actions did this time; None where the recorded episode had no end."""

    recorded: Trajectory
    played: Played | None


def has_ended(trajectory: Trajectory) -> bool:
    """The episode came to an end of its own, graded or not: its actions are all there."""
    return trajectory.stop_reason.grade or trajectory.stop_reason in (StopReason.GRADE_ERROR, StopReason.GRADE_TIMEOUT)


async def reexecute(
    run: Run,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    wanted: Callable[[Trajectory], bool] = lambda trajectory: True,
    concurrency: int = 8,
    deadlines: Deadlines = Deadlines(),
) -> AsyncGenerator[Reexecution, None]:
    """Each trajectory of an evaluation with what its actions do now, as they finish.

    Args:
        env_kwargs: settings of the environment that replace those of the run.
        wanted: which trajectories; the others are left out.

    Raises:
        ConfigError: it is no evaluation, or the environment no longer has one of its tasks.
    """
    if run.kind != "eval":
        raise ConfigError(f"{run.path} is no evaluation; a training's are {run.path}/eval/before and .../after")
    env_id = run.config["env_id"]
    settings = {**run.config.get("env_kwargs", {}), **(env_kwargs or {})}
    tasks = make_env(env_id, **settings).tasks
    positions = _positions(run, tasks)

    async def again(recorded: Trajectory) -> Reexecution:
        if not has_ended(recorded):
            return Reexecution(recorded, None)
        task = tasks[positions[recorded.task_hash]]
        request = RolloutRequest(env_id, task, recorded.group, recorded.sample)
        player = ScriptPlayer(recorded.policy, settings, deadlines=deadlines)
        return Reexecution(recorded, await player.play(request, _answers(recorded)))

    chosen = (trajectory for trajectory in run.trajectories() if wanted(trajectory))
    async with aclosing(each(chosen, again, concurrency)) as found:
        async for reexecution in found:
            yield reexecution


def _answers(recorded: Trajectory) -> list[Completion]:
    return [Completion("", turn.finish_reason, message=turn.message) for turn in recorded.turns]  # type: ignore[arg-type]


def _positions(run: Run, tasks: TaskSet) -> dict[str, int]:
    """Where the run's tasks are in the environment's set, by content hash; no task is held."""
    missing = {trajectory.task_hash: trajectory.task_id for trajectory in run.trajectories()}
    found: dict[str, int] = {}
    for position, task in enumerate(tasks):
        if not missing:
            break
        if missing.pop(task.hash, None) is not None:
            found[task.hash] = position
    if missing:
        raise ConfigError(
            f"{len(missing)} tasks of {run.path} are not among those of {run.config['env_id']} (such as "
            f"{next(iter(missing.values()))!r}): their data or the environment's settings have changed since"
        )
    return found
