"""What a run looks like from outside, moment by moment: counts, queues, times, and what is stuck."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from skyrl_gym.rollout.trajectory import Trajectory

__all__ = ["MetricsLog", "OnMetrics", "RunMetrics", "Stuck", "Tally"]


@dataclass(frozen=True, slots=True)
class Stuck:
    """A stage that has used up half of its deadline. `stack` is where it waits, innermost last."""

    task_id: str
    sample: int
    stage: str
    seconds: float
    limit_s: float
    stack: tuple[str, ...]

    def __str__(self) -> str:
        # Every wait ends in a line of asyncio's; who waits is what a reader looks for.
        where = next((line for line in reversed(self.stack) if "/asyncio/" not in line), "nowhere")
        age = f"{self.stage} for {self.seconds:.0f} s of {self.limit_s:g} s"
        return f"{self.task_id}, sample {self.sample}: {age}, at {where}"


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """One moment of a run.

    Args:
        seconds: since the run began.
        finished: trajectories that have ended, by stop reason.
        retries: attempts that were repeated.
        live: environments that exist; `setup`, `ready`, `run`, `grade` of them are in these stages, `ready`
            and `grading_next` wait for a place.
        pending: requests drawn and not begun; `unread`: trajectories that the reader has not taken.
        run_places: how many may run at once now.
        turns, tokens: taken and sampled so far; `tokens_per_s` is of the time since the last report.
        stage_s: mean seconds of each stage.
        loop_lag_s: longest time since the last report that the event loop was late.
        leaks: environments that did not close in time.
        down: parts of the machinery that the run waits for.
        stuck: what has been in one stage for very long.
    """

    seconds: float
    finished: Mapping[str, int]
    retries: int
    live: int
    setup: int
    ready: int
    run: int
    grading_next: int
    grade: int
    pending: int
    unread: int
    run_places: int
    turns: int
    tokens: int
    tokens_per_s: float
    stage_s: Mapping[str, float]
    loop_lag_s: float
    leaks: int
    down: tuple[str, ...]
    stuck: tuple[Stuck, ...]

    def headline(self) -> dict[str, float]:
        """What a person wants to see of it while it goes on; what is nothing is left out."""
        numbers = {
            "setting up": self.setup,
            "running": self.run,
            "grading": self.grade + self.grading_next,
            "tok/s": self.tokens_per_s,
            "retries": self.retries,
            "leaks": self.leaks,
        }
        return {name: number for name, number in numbers.items() if number}

    def trouble(self) -> str:
        """What the run waits for, in words; empty when all is well."""
        if self.down:
            return f"waiting for the {' and the '.join(self.down)}"
        return f"slow: {self.stuck[0]}" if self.stuck else ""


OnMetrics: TypeAlias = Callable[[RunMetrics], None]


@dataclass
class Tally:
    """What a run has counted so far."""

    finished: Counter[str] = field(default_factory=Counter)
    retries: int = 0
    turns: int = 0
    tokens: int = 0
    leaks: int = 0
    loop_lag_s: float = 0.0
    stage_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    stages: Counter[str] = field(default_factory=Counter)

    def count(self, trajectory: Trajectory) -> None:
        """Counts a trajectory that has ended."""
        self.finished[trajectory.stop_reason.value] += 1
        for stage, seconds in trajectory.seconds.items():
            self.stages[stage] += 1
            self.stage_s[stage] += seconds

    def mean_stage_s(self) -> dict[str, float]:
        """Mean seconds of each stage."""
        return {stage: self.stage_s[stage] / count for stage, count in self.stages.items()}


class MetricsLog:
    """Writes metrics to a file, one JSON line each. Use it as a context manager."""

    def __init__(self, path: str | Path) -> None:
        self._file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115 - closed by `close`

    def __call__(self, metrics: RunMetrics) -> None:
        """Writes one line."""
        self._file.write(json.dumps(asdict(metrics), ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file; may be called twice."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
