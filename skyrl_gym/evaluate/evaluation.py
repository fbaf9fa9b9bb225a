"""Evaluating a policy on an environment: rollouts into a run folder, resumed where they stopped."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict
from itertools import compress
from pathlib import Path
from typing import Any

from skyrl_gym.errors import ConfigError
from skyrl_gym.evaluate.metrics import Summary, default_ks, is_judged, summarise
from skyrl_gym.evaluate.runs import EXCLUDED, JOURNAL, in_use, open_run, provenance, write_json, write_whole
from skyrl_gym.policy import Policy, Sampling
from skyrl_gym.progress import OnProgress, Progress
from skyrl_gym.rollout import (
    Deadlines,
    Journal,
    RolloutLimits,
    RolloutRequest,
    Runner,
    Trajectory,
    read_journal,
    requests_for,
)
from skyrl_gym.tasks import Task, TaskSet

__all__ = ["evaluate"]


async def evaluate(
    env_id: str,
    policy: Policy,
    *,
    tasks: TaskSet | Iterable[Task],
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

    A folder that holds some of them already (same environment, task content and sample) is completed: what
    was judged stays, what was excluded is tried again. Tasks of equal content are one task.

    Args:
        ks: for which k to estimate pass@k; by default the powers of two up to `samples`.
        stage: how `on_progress` names it.

    Raises:
        ConfigError: no tasks, no samples, or the folder belongs to other settings or is in use.
        RunAborted: an environment, tool or policy has a bug.
    """
    wanted = list({request.key: request for request in requests_for(env_id, tasks, samples)}.values())
    if not wanted:
        raise ConfigError(f"an evaluation of {env_id} needs at least one task and one sample; got samples={samples}")
    settings = {
        "env_id": env_id,
        "env_kwargs": dict(env_kwargs or {}),
        "policy": policy.name,
        "sampling": asdict(sampling),
        "max_context": limits.max_context,
        "episode_s": deadlines.episode_s,
        "samples": samples,
        "tasks": {
            "name": getattr(tasks, "name", ""),
            "count": len({request.task.hash for request in wanted}),
            "digest": _digest(wanted),
        },
    }
    scores = _Scores(stage, len(wanted), on_progress)
    with in_use(out_dir):
        _begin(out_dir, settings)
        _set_excluded_aside(out_dir, scores)
        missing = [request for request in wanted if request.key not in scores.done]
        with Journal(out_dir / JOURNAL) as journal:
            runner = Runner(policy, sampling, env_kwargs or {}, limits, deadlines, journal)
            async with aclosing(runner.run(missing)) as finished:
                async for trajectory in finished:
                    scores.add(trajectory)
        summary = summarise(read_journal(out_dir / JOURNAL), ks or default_ks(samples))
        write_json(out_dir / "summary.json", summary.to_json())
    return summary


class _Scores:
    """How far the evaluation is."""

    def __init__(self, stage: str, total: int, on_progress: OnProgress) -> None:
        self.done: set[tuple[str, str, int]] = set()
        self._stage, self._total, self._on_progress = stage, total, on_progress
        self._judged, self._reward = 0, 0.0

    def add(self, trajectory: Trajectory) -> None:
        """Counts one trajectory and tells."""
        self.done.add(trajectory.key)
        if is_judged(trajectory):
            self._judged, self._reward = self._judged + 1, self._reward + (trajectory.reward or 0.0)
        excluded = len(self.done) - self._judged
        self._on_progress(
            Progress(
                self._stage,
                len(self.done),
                self._total,
                self._reward / self._judged if self._judged else None,
                detail={"excluded": excluded} if excluded else {},
            )
        )


def _begin(out_dir: Path, settings: Mapping[str, Any]) -> None:
    """Starts a folder, or makes sure that it belongs to these settings."""
    # Through JSON, as the file goes, so that tuples and lists compare equal.
    config = json.loads(json.dumps(settings))
    if (out_dir / "run.json").is_file():
        held = open_run(out_dir).config
        if differing := [key for key in config | dict(held) if config.get(key) != held.get(key)]:
            raise ConfigError(
                f"{out_dir} holds an evaluation with other settings ({', '.join(differing)}): "
                "give another folder, or what its run.json says"
            )
        (out_dir / "summary.json").unlink(missing_ok=True)  # it is of fewer trajectories than will be there
    else:
        write_json(out_dir / "run.json", {"kind": "eval", "config": config, "provenance": provenance()})


def _set_excluded_aside(out_dir: Path, scores: _Scores) -> None:
    """Leaves only what was judged in the journal, so that it never has two lines for one trajectory.

    The others are kept in excluded.jsonl. A kill between the two steps sets them aside twice, nothing more.
    """
    journal = out_dir / JOURNAL
    if not journal.is_file():
        return
    judged = []
    for trajectory in read_journal(journal):
        judged.append(is_judged(trajectory))
        if judged[-1]:
            scores.add(trajectory)
    if all(judged):
        return
    with journal.open("rb") as lines, (out_dir / EXCLUDED).open("ab") as excluded:
        excluded.writelines(compress(lines, (not keep for keep in judged)))
        excluded.flush()
        os.fsync(excluded.fileno())
    with journal.open("rb") as lines:
        write_whole(journal, compress(lines, judged))


def _digest(requests: Sequence[RolloutRequest]) -> str:
    hashes = dict.fromkeys(request.task.hash for request in requests)
    return hashlib.sha256(" ".join(hashes).encode()).hexdigest()[:16]
