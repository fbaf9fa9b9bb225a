"""What a runner is asked for, and within which bounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Self

from skyrl_gym.errors import ConfigError
from skyrl_gym.tasks import Task

__all__ = ["Deadlines", "RolloutLimits", "RolloutRequest", "requests_for"]


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One trajectory to make.

    Args:
        env_id, task: what is played.
        group: names the trajectories that are compared with each other.
        sample: which of its task's trajectories this is.
        samples: how many of the task are asked for, as far as is known; what was prepared is kept for the next.
        group_valid: valid trajectories that an earlier run made of the group; they count towards closing it.
    """

    env_id: str
    task: Task
    group: str
    sample: int = 0
    samples: int = 1
    group_valid: int = 0

    @property
    def key(self) -> tuple[str, str, int]:
        """Equal to the `key` of its trajectory."""
        return (self.env_id, self.task.hash, self.sample)

    @property
    def group_key(self) -> tuple[str, str]:
        """Equal for the requests of one group, and for no others."""
        return (self.env_id, self.group)


def requests_for(env_id: str, tasks: Iterable[Task], samples: int) -> Iterator[RolloutRequest]:
    """`samples` requests for each task, a task's own side by side."""
    return (RolloutRequest(env_id, task, task.id, sample, samples) for task in tasks for sample in range(samples))


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """Bounds of a run. The paper's three strategies are `batch`, `bounded` and `pipeline`.

    Args:
        live: environments that exist at once, whatever they do.
        setup, run, grade: how many of them are in each stage; `run` is `live` where it is None.
        ready: environments set up ahead, that wait for a place to run.
        retries: how often a failed trajectory is tried again.
        max_context: tokens that hold a prompt and its completion.
        close_groups_at: a group closes once it has this many valid trajectories, and the rest of it ends as
            SURPLUS. Off by default, since it favours short episodes.

    Raises:
        ConfigError: a bound is too small.
    """

    live: int = 32
    setup: int = 8
    run: int | None = None
    ready: int = 4
    grade: int = 8
    retries: int = 2
    max_context: int | None = None
    close_groups_at: int | None = None

    def __post_init__(self) -> None:
        least = {"ready": 0, "retries": 0}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and value < least.get(field.name, 1):
                raise ConfigError(f"RolloutLimits.{field.name} is at least {least.get(field.name, 1)}; got {value}")

    @property
    def running(self) -> int:
        """The bound on the run stage."""
        return self.live if self.run is None else min(self.run, self.live)

    @classmethod
    def batch(cls, size: int) -> Self:
        """Everything at once: `size` is the number of requests."""
        return cls.bounded(size)

    @classmethod
    def bounded(cls, size: int) -> Self:
        """`size` trajectories at once, each going through its stages in a place of its own."""
        return cls(live=size, setup=size, run=size, ready=0, grade=size)

    @classmethod
    def pipeline(cls, *, setup: int, run: int, grade: int, ready: int = 4, live: int | None = None) -> Self:
        """Each stage has its places, so that preparing and grading never take one from the policy."""
        total = setup + run + grade + ready if live is None else live
        return cls(live=total, setup=setup, run=run, ready=ready, grade=grade)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """One tree of clocks, in seconds; each has its own exception class. Tools carry their own deadline.

    Args:
        setup_s, episode_s, grade_s, teardown_s: of the stages.
        policy_s: of one policy call.
        turn_s: of one turn, the answer and its tools together.
        run_s: of the whole run.
        stop_s: how long something that was told to stop may take before it is left behind and reported.
    """

    setup_s: float = 600.0
    policy_s: float = 600.0
    turn_s: float | None = None
    episode_s: float = 3_600.0
    grade_s: float = 900.0
    teardown_s: float = 30.0
    run_s: float | None = None
    stop_s: float = 5.0
