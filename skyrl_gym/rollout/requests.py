"""What a runner is asked for, and within which bounds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from skyrl_gym.tasks import Task

__all__ = ["Deadlines", "RolloutLimits", "RolloutRequest", "requests_for"]


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One trajectory to make. `group` names those that are compared with each other, `sample` this one."""

    env_id: str
    task: Task
    group: str
    sample: int = 0

    @property
    def key(self) -> tuple[str, str, int]:
        """Equal to the `key` of its trajectory."""
        return (self.env_id, self.task.hash, self.sample)


def requests_for(env_id: str, tasks: Iterable[Task], samples: int) -> Iterator[RolloutRequest]:
    """`samples` requests for each task, a task's own side by side."""
    return (RolloutRequest(env_id, task, task.id, sample) for task in tasks for sample in range(samples))


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """Bounds of a run.

    `live` environments exist at once, `setup` and `grade` of them in these stages; a failed trajectory is
    tried `retries` times more; `max_context` tokens hold a prompt and its completion.
    """

    live: int = 32
    setup: int = 8
    grade: int = 8
    retries: int = 2
    max_context: int | None = None


@dataclass(frozen=True, slots=True)
class Deadlines:
    """One tree of clocks, in seconds; each has its own exception class. Tools carry their own deadline."""

    setup_s: float = 600.0
    policy_s: float = 600.0
    episode_s: float = 3_600.0
    grade_s: float = 900.0
    teardown_s: float = 30.0
    run_s: float | None = None
