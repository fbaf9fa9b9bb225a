"""Grading the trajectories of a run anew, without the model: their actions are re-executed, then graded."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from skyrl_gym.errors import ConfigError
from skyrl_gym.evaluate.divergence import DIVERGED, first_divergence
from skyrl_gym.evaluate.metrics import Summary, default_ks, summarise
from skyrl_gym.evaluate.reexecution import Reexecution, reexecute
from skyrl_gym.evaluate.runs import JOURNAL, Run, in_use, provenance, write_json
from skyrl_gym.progress import OnProgress, Progress
from skyrl_gym.rollout import Journal, Trajectory, read_journal

__all__ = ["rescore"]


async def rescore(
    run: Run,
    out_dir: Path,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    concurrency: int = 8,
    on_progress: OnProgress = lambda progress: None,
) -> Summary:
    """A new run folder with the run's trajectories and new grades.

    Messages and tokens stay as the model saw and wrote them. Trajectories whose machinery failed before the
    episode ended stay as they are; where the grader failed, they now get a grade.

    Args:
        env_kwargs: settings of the environment that replace those of the run (another judge).

    Raises:
        ConfigError: the folder exists, or the run can't be re-executed.
    """
    _refuse_existing(out_dir)
    count = sum(1 for _ in run.trajectories())
    config = {
        **run.config,
        "env_kwargs": {**run.config.get("env_kwargs", {}), **(env_kwargs or {})},
        "scored_from": str(run.path),
    }
    again = reexecute(run, env_kwargs=env_kwargs, concurrency=concurrency)
    with in_use(out_dir):
        write_json(out_dir / "run.json", {"kind": "eval", "config": config, "provenance": provenance()})
        done = 0
        with Journal(out_dir / JOURNAL) as journal:
            async with aclosing(again) as reexecutions:
                async for reexecution in reexecutions:
                    journal.append(_graded_anew(reexecution))
                    done += 1
                    on_progress(Progress("score", done, count))
        summary = summarise(read_journal(out_dir / JOURNAL), default_ks(run.tries))
        write_json(out_dir / "summary.json", summary.to_json())
    return summary


def _refuse_existing(folder: Path) -> None:
    if folder.exists():
        raise ConfigError(f"{folder} exists already: scores go into a folder of their own")


def _graded_anew(found: Reexecution) -> Trajectory:
    """The record with the reward, metrics and ending of the re-execution."""
    if found.played is None:
        return found.recorded
    recorded, played = found.recorded, found.played.trajectory
    # What the runner cut (a full context) has no end of its own to find again.
    kept = found.played.ran_out and recorded.stop_reason.valid and played.stop_reason.valid
    rewards = [turn.reward for turn in played.turns] + [0.0] * len(recorded.turns)
    return replace(
        recorded,
        stop_reason=recorded.stop_reason if kept else played.stop_reason,
        turns=tuple(replace(turn, reward=reward) for turn, reward in zip(recorded.turns, rewards, strict=False)),
        reward=played.reward,
        metrics={**played.metrics, DIVERGED: float(first_divergence(recorded, found.played, grade=False) is not None)},
        artifacts=played.artifacts,
        error=played.error,
        seconds={**recorded.seconds, "grade": played.seconds.get("grade", 0.0)},
    )
