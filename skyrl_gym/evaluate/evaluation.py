"""Evaluating a policy on an environment: rollouts into a run folder, resumed where they stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skyrl_gym.errors import ConfigError
from skyrl_gym.evaluate.metrics import Summary, summarise
from skyrl_gym.evaluate.runs import JOURNAL, open_run, provenance, write_json
from skyrl_gym.policy import Policy, Sampling
from skyrl_gym.progress import OnProgress, Progress
from skyrl_gym.rollout import Deadlines, Journal, RolloutLimits, RolloutRequest, Runner, read_journal, requests_for
from skyrl_gym.tasks import TaskSet

__all__ = ["evaluate"]


async def evaluate(
    env_id: str,
    policy: Policy,
    *,
    tasks: TaskSet,
    samples: int,
    out_dir: Path,
    env_kwargs: Mapping[str, Any] | None = None,
    sampling: Sampling = Sampling(),
    limits: RolloutLimits = RolloutLimits(),
    deadlines: Deadlines = Deadlines(),
    ks: Sequence[int] | None = None,
    on_progress: OnProgress = lambda progress: None,
    stage: str = "evaluate",
) -> Summary:
    """`samples` trajectories of each task, their statistics, and everything in `out_dir`.

    A folder that holds some of them already (same environment, task content and sample) is completed.

    Raises:
        ConfigError: no tasks, no samples, or the folder belongs to other settings.
        RunAborted: an environment, tool or policy has a bug.
    """
    if not len(tasks) or samples < 1:
        raise ConfigError(f"an evaluation needs tasks and samples; got {len(tasks)} tasks, {samples} samples")
    wanted = list(requests_for(env_id, tasks, samples))
    settings = {
        "env_id": env_id,
        "env_kwargs": dict(env_kwargs or {}),
        "policy": policy.name,
        "sampling": asdict(sampling),
        "samples": samples,
        "tasks": {"name": tasks.name, "count": len(tasks), "digest": _digest(wanted)},
    }
    done = _begin(out_dir, settings)
    with Journal(out_dir / JOURNAL) as journal:
        runner = Runner(policy, sampling, env_kwargs or {}, limits, deadlines, journal)
        reward, judged = 0.0, 0
        missing = [request for request in wanted if request.key not in done]
        async with aclosing(runner.run(missing)) as finished:
            count = len(wanted) - len(missing)
            async for trajectory in finished:
                count += 1
                if trajectory.valid:
                    reward, judged = reward + (trajectory.reward or 0.0), judged + 1
                on_progress(Progress(stage, count, len(wanted), reward / judged if judged else None))
    summary = summarise(read_journal(out_dir / JOURNAL), ks or _default_ks(samples))
    write_json(out_dir / "summary.json", summary.to_json())
    return summary


def _begin(out_dir: Path, settings: Mapping[str, Any]) -> set[tuple[str, str, int]]:
    """Starts or continues a folder; gives the keys of what is done."""
    if (out_dir / "run.json").is_file():
        held = open_run(out_dir).info.get("config")
        # Through JSON, as the file went, so that tuples and lists compare equal.
        if held != _jsonable(settings):
            raise ConfigError(f"{out_dir} holds an evaluation with other settings; give another folder")
        return {trajectory.key for trajectory in open_run(out_dir).trajectories()}
    write_json(out_dir / "run.json", {"kind": "eval", "config": _jsonable(settings), "provenance": provenance()})
    return set()


def _jsonable(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _default_ks(samples: int) -> tuple[int, ...]:
    return tuple(k for k in (1, 2, 4, 8, 16) if k <= samples)


def _digest(requests: Sequence[RolloutRequest]) -> str:
    return hashlib.sha256(" ".join(request.task.hash for request in requests).encode()).hexdigest()[:16]
