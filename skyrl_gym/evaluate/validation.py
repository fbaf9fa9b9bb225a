"""Whether tasks and grader can be trusted: gold solves each task, doing nothing and cheating don't."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from skyrl_gym.errors import InfraError, UserError
from skyrl_gym.evaluate.metrics import is_judged
from skyrl_gym.evaluate.scripts import ScriptPlayer, completion_of, each
from skyrl_gym.probes import Probe
from skyrl_gym.registration import make_env
from skyrl_gym.rollout import Deadlines, RolloutRequest, Trajectory
from skyrl_gym.tasks import Task

__all__ = ["ProbeResult", "probe_counts", "validate"]


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What one probe of one task earned.

    `reward` is None where it could not be judged. `problem` is empty if the probe earned what it may.
    `probe` is empty where the environment could not even say which probes the task has.
    """

    task_id: str
    probe: str
    expected: str
    reward: float | None
    problem: str
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """The probe earned what it may."""
        return not self.problem

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self) | {"passed": self.passed}


async def validate(
    env_id: str,
    tasks: Iterable[Task],
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    concurrency: int = 8,
    deadlines: Deadlines = Deadlines(),
) -> AsyncGenerator[list[ProbeResult], None]:
    """Plays the probes of each task and gives their results, task by task as they finish.

    Nothing that goes wrong with a task stops the others: it is the `problem` of a result.
    """
    env = make_env(env_id, **dict(env_kwargs or {}))
    player = ScriptPlayer("probe", env_kwargs or {}, deadlines=deadlines)

    async def play(task: Task, name: str, probe: Probe) -> ProbeResult:
        request = RolloutRequest(env_id, task, task.id)
        try:
            played = await player.play(request, [completion_of(action) for action in probe.actions])
        except UserError as error:
            return ProbeResult(task.id, name, probe.expected, None, str(error))
        return _judge(task, name, probe, played.trajectory)

    async def check(task: Task) -> list[ProbeResult]:
        try:
            probes = await env.aprobes(task)
        except (UserError, InfraError) as error:
            return [ProbeResult(task.id, "", "", None, str(error))]
        return [await play(task, name, probe) for name, probe in probes.items()]

    async for results in each(tasks, check, concurrency):
        yield results


def probe_counts(results: Iterable[ProbeResult]) -> dict[str, tuple[int, int]]:
    """For each probe how many tasks passed it, of how many."""
    counts: dict[str, tuple[int, int]] = {}
    for result in results:
        passed, total = counts.get(result.probe, (0, 0))
        counts[result.probe] = (passed + result.passed, total + 1)
    return counts


def _judge(task: Task, name: str, probe: Probe, trajectory: Trajectory) -> ProbeResult:
    seconds = sum(trajectory.seconds.values())
    if not is_judged(trajectory) or trajectory.reward is None:
        why = trajectory.error.message if trajectory.error else "no reward"
        problem = f"not judged, {trajectory.stop_reason.value}: {why}"
        return ProbeResult(task.id, name, probe.expected, None, problem, seconds)
    problem = "" if probe.allows(trajectory.reward) else f"earned {trajectory.reward:g}, expected {probe.expected}"
    return ProbeResult(task.id, name, probe.expected, trajectory.reward, problem, seconds)
