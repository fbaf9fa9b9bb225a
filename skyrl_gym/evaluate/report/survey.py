"""One look at all trajectories of a run: its numbers, and which of them a report shows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from skyrl_gym.evaluate.metrics import Summary, is_judged, summarise
from skyrl_gym.evaluate.runs import Run
from skyrl_gym.rollout import Trajectory

__all__ = ["Survey", "choose", "chosen_trajectories", "survey"]

FAILURES_SHOWN = 3  # of each ending that excludes


@dataclass(frozen=True)
class Survey:
    """The summary of a run's trajectories, one line on each in journal order, and the seconds of their turns."""

    summary: Summary
    lines: tuple[tuple[str, float | None], ...]  # ending, reward if it counts
    turn_seconds: dict[str, float] = field(default_factory=dict)  # of an average trajectory


def survey(trajectories: Iterable[Trajectory], ks: Sequence[int]) -> Survey:
    """Reads the trajectories once; holds a few numbers of each."""
    lines: list[tuple[str, float | None]] = []
    seconds: defaultdict[str, float] = defaultdict(float)

    def watched() -> Iterator[Trajectory]:
        for trajectory in trajectories:
            lines.append((trajectory.stop_reason.value, trajectory.reward if is_judged(trajectory) else None))
            for turn in trajectory.turns:
                for name, taken in turn.seconds.items():
                    seconds[name] += taken
            yield trajectory

    summary = summarise(watched(), ks)
    return Survey(summary, tuple(lines), {name: total / len(lines) for name, total in seconds.items()})


def choose(lines: Sequence[tuple[str, float | None]], most: int) -> list[int]:
    """Positions of at most `most` trajectories worth showing, in order.

    All if they fit; else some of every way to fail, then by turns from the first, the last, the best and the
    worst until it is full.
    """
    if len(lines) <= most:
        return list(range(len(lines)))
    seen: Counter[str] = Counter()
    chosen: dict[int, None] = {}
    for position, (ending, reward) in enumerate(lines):
        if reward is None and seen[ending] < FAILURES_SHOWN and len(chosen) < most:
            seen[ending] += 1
            chosen[position] = None
    judged = [position for position, (_, reward) in enumerate(lines) if reward is not None]
    by_reward = sorted(judged, key=lambda position: lines[position][1] or 0.0)
    for candidates in zip(judged, reversed(judged), reversed(by_reward), by_reward, strict=True):
        for position in candidates:
            if len(chosen) < most:
                chosen[position] = None
    return sorted(chosen)


def chosen_trajectories(run: Run, positions: Sequence[int]) -> Iterator[Trajectory]:
    """The trajectories at these positions of the journal."""
    wanted = set(positions)
    upto = islice(run.trajectories(), max(wanted, default=-1) + 1)
    return (trajectory for position, trajectory in enumerate(upto) if position in wanted)
