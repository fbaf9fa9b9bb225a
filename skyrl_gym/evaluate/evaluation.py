"""Evaluating a policy on an environment: rollouts into a run folder, resumed where they stopped."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

from skyrl_gym.errors import ConfigError, StopReason
from skyrl_gym.evaluate.known import KnownPlayer, KnownRunner
from skyrl_gym.evaluate.metrics import Summary, default_ks, is_judged, summarise
from skyrl_gym.evaluate.runs import (
    EXCLUDED,
    JOURNAL,
    ROLLOUT_METRICS,
    in_use,
    open_run,
    provenance,
    write_json,
    write_whole,
)
from skyrl_gym.evaluate.spending import Caps, Meter, Prices, metered
from skyrl_gym.policy import Policy, Sampling, in_dialect_of
from skyrl_gym.progress import OnProgress, Progress
from skyrl_gym.rollout import (
    Deadlines,
    Journal,
    MetricsLog,
    OnMetrics,
    RolloutLimits,
    RolloutRequest,
    RunMetrics,
    Runner,
    Trajectory,
    read_journal,
    requests_for,
)
from skyrl_gym.tasks import Task, TaskSet

__all__ = ["evaluate"]


async def evaluate(
    env_id: str,
    policy: Policy | KnownPlayer,
    *,
    tasks: TaskSet | Iterable[Task],
    samples: int,
    out_dir: Path,
    env_kwargs: Mapping[str, Any] | None = None,
    sampling: Sampling = Sampling(),
    seeds: Sequence[int] = (),
    limits: RolloutLimits = RolloutLimits(),
    deadlines: Deadlines = Deadlines(),
    ks: Sequence[int] | None = None,
    caps: Caps = Caps(),
    prices: Prices | None = None,
    retry_excluded: bool = True,
    begun: Callable[[Mapping[str, Any]], None] = lambda config: None,
    on_progress: OnProgress = lambda progress: None,
    stage: str = "evaluate",
) -> Summary:
    """`samples` trajectories of each task, their statistics, and everything in `out_dir`.

    A folder that holds some of them already (same environment, task content and sample) is completed: what
    was judged stays, what was excluded is tried again. Tasks of equal content are one task.

    Args:
        policy: who answers, or a probe of the environment's own.
        seeds: several seeds of the sampling in place of its one; each has `samples` trajectories of each task.
        ks: for which k to estimate pass@k and pass^k; by default the powers of two up to their number.
        caps: where to stop early; the summary says so, and the same folder goes on with other caps.
        prices: for the cost.
        retry_excluded: try again what a folder holds of trajectories that were not judged.
        begun: told the settings before a new folder gets them; what it raises stops the evaluation.
        stage: how `on_progress` names it.

    Raises:
        ConfigError: no tasks, no samples, or the folder belongs to other settings or is in use.
        RunAborted: an environment, tool or policy has a bug.
    """
    tries = samples * max(1, len(seeds))
    wanted = list({request.key: request for request in requests_for(env_id, tasks, tries)}.values())
    if not wanted:
        raise ConfigError(f"an evaluation of {env_id} needs at least one task and one sample; got samples={samples}")
    settings: dict[str, Any] = {
        "env_id": env_id,
        "env_kwargs": _settled(policy, env_kwargs or {}),
        "policy": policy.name,
        "sampling": asdict(sampling),
        **({"seeds": list(seeds)} if seeds else {}),
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
        _begin(out_dir, settings, begun)
        _take_over(out_dir, scores, retry_excluded)
        meter = Meter(out_dir, caps, prices)
        with Journal(out_dir / JOURNAL) as journal, MetricsLog(out_dir / ROLLOUT_METRICS) as log:

            def watch(metrics: RunMetrics) -> None:
                log(metrics)
                scores.watch(metrics)

            play = _Play(policy, sampling, seeds, samples, settings["env_kwargs"], limits, deadlines, journal, watch)
            missing = [request for request in wanted if request.key not in scores.done]
            stopped = await _until(play.run(missing, meter), scores.add, meter)
        ended = (t for t in read_journal(out_dir / JOURNAL) if t.stop_reason is not StopReason.CANCELLED)
        found = summarise(ended, ks or default_ks(tries), seeds=seeds, samples=samples)
        spending = meter.spending if meter.spending.completions else None
        not_run = len(wanted) - found.total
        summary = replace(found, not_run=not_run, stopped=stopped, spending=spending)
        write_json(out_dir / "summary.json", summary.to_json())
    return summary


@dataclass(frozen=True)
class _Play:
    """How trajectories are made."""

    policy: Policy | KnownPlayer
    sampling: Sampling
    seeds: Sequence[int]
    samples: int
    env_kwargs: Mapping[str, Any]
    limits: RolloutLimits
    deadlines: Deadlines
    journal: Journal
    on_metrics: OnMetrics

    async def run(self, requests: Sequence[RolloutRequest], meter: Meter) -> AsyncGenerator[Trajectory, None]:
        """One trajectory a request: sample i belongs to the seed at i // samples, and each seed has its turn."""
        for place, seed in enumerate(self.seeds or [self.sampling.seed]):
            own = [r for r in requests if not self.seeds or r.sample // self.samples == place]
            if not own:
                continue
            async with aclosing(self._runner(replace(self.sampling, seed=seed), meter).run(own)) as finished:
                async for trajectory in finished:
                    yield trajectory

    def _runner(self, sampling: Sampling, meter: Meter) -> Runner | KnownRunner:
        if isinstance(self.policy, KnownPlayer):
            live, retries = self.limits.live, self.limits.retries
            return KnownRunner(self.policy, self.env_kwargs, live, retries, self.deadlines, self.journal)
        policy = metered(self.policy, meter)
        return Runner(
            policy, sampling, self.env_kwargs, self.limits, self.deadlines, self.journal, on_metrics=self.on_metrics
        )


def _settled(policy: Policy | KnownPlayer, env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The environment's settings; a probe has no dialect of its own."""
    return dict(env_kwargs) if isinstance(policy, KnownPlayer) else in_dialect_of(policy, env_kwargs)


async def _until(
    trajectories: AsyncGenerator[Trajectory, None], add: Callable[[Trajectory], None], meter: Meter
) -> str:
    """Takes trajectories until they end or a cap is reached; gives the cap in words."""

    async def take() -> None:
        async with aclosing(trajectories):
            async for trajectory in trajectories:
                add(trajectory)

    work, over = asyncio.ensure_future(take()), asyncio.ensure_future(meter.over.wait())
    try:
        await asyncio.wait({work, over}, timeout=meter.caps.seconds, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            await work
            return ""
        return meter.caps.reached(meter.spending) or f"the limit of {meter.caps.seconds:g} s is over"
    finally:
        for future in (work, over):
            future.cancel()
        await asyncio.gather(work, over, return_exceptions=True)
        if meter.spending.completions:
            meter.save()


class _Scores:
    """How far the evaluation is, and what its runner is at."""

    def __init__(self, stage: str, total: int, on_progress: OnProgress) -> None:
        self.done: set[tuple[str, str, int]] = set()
        self._stage, self._total, self._on_progress = stage, total, on_progress
        self._judged, self._reward = 0, 0.0
        self._headline: Mapping[str, float] = {}
        self._trouble = ""

    def add(self, trajectory: Trajectory) -> None:
        """Counts one trajectory and tells."""
        self.done.add(trajectory.key)
        if is_judged(trajectory):
            self._judged, self._reward = self._judged + 1, self._reward + (trajectory.reward or 0.0)
        self._tell()

    def watch(self, metrics: RunMetrics) -> None:
        """Tells what the runner is at."""
        self._headline, self._trouble = metrics.headline(), metrics.trouble()
        self._tell()

    def _tell(self) -> None:
        excluded = len(self.done) - self._judged
        self._on_progress(
            Progress(
                self._stage,
                len(self.done),
                self._total,
                self._reward / self._judged if self._judged else None,
                message=self._trouble,
                detail={**({"excluded": excluded} if excluded else {}), **self._headline},
            )
        )


def _begin(out_dir: Path, settings: Mapping[str, Any], begun: Callable[[Mapping[str, Any]], None]) -> None:
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
        begun(config)
        write_json(out_dir / "run.json", {"kind": "eval", "config": config, "provenance": provenance()})


def _take_over(out_dir: Path, scores: _Scores, retry_excluded: bool) -> None:
    """Counts what the journal holds; what is to be tried again leaves it, so that no trajectory has two lines.

    That is kept in excluded.jsonl. A kill between the two steps sets it aside twice, nothing more.
    """
    journal = out_dir / JOURNAL
    if not journal.is_file():
        return
    judged = []
    for trajectory in read_journal(journal):
        cut = trajectory.stop_reason is StopReason.CANCELLED
        judged.append(is_judged(trajectory) or not (retry_excluded or cut))
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
