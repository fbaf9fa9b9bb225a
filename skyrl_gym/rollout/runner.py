"""The runner: N requests in, N typed trajectories out, whatever raises or hangs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from skyrl_gym.env import TextEnv
from skyrl_gym.policy.base import Policy, Sampling
from skyrl_gym.registration import make_env
from skyrl_gym.rollout.admission import Admission
from skyrl_gym.rollout.engine import Run
from skyrl_gym.rollout.failures import FailurePolicy
from skyrl_gym.rollout.intake import Requests
from skyrl_gym.rollout.journal import Journal
from skyrl_gym.rollout.metrics import OnMetrics
from skyrl_gym.rollout.requests import Deadlines, RolloutLimits, RolloutRequest
from skyrl_gym.rollout.schedule import Estimates
from skyrl_gym.rollout.trajectory import Trajectory

__all__ = ["RunSettings", "Runner"]

P = TypeVar("P")


@dataclass(frozen=True)
class RunSettings(Generic[P]):
    """How a runner plays, wherever its environments are; `policy` is what the runner takes for one."""

    policy: P
    sampling: Sampling = Sampling()
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    limits: RolloutLimits = RolloutLimits()
    deadlines: Deadlines = Deadlines()
    journal: Journal | None = None
    failures: FailurePolicy = FailurePolicy()
    on_metrics: OnMetrics = lambda metrics: None
    metrics_every_s: float = 5.0
    make: Callable[..., TextEnv] = make_env
    estimates: Estimates = field(default_factory=Estimates)
    admission: Admission = field(default_factory=Admission)


@dataclass(frozen=True)
class Runner(RunSettings[Policy]):
    """Plays many episodes at once against one policy.

    Args:
        policy: who answers. One that `ReportsLoad` is given no more episodes at once than it can take.
        sampling: its settings; a seed gives every trajectory and turn its own, independent of scheduling.
        env_kwargs: constructor arguments of the environments.
        limits, deadlines: the run's bounds.
        journal: where finished trajectories are written before they are yielded.
        failures: what the run does about failures of the machinery.
        on_metrics: told of the run's state every `metrics_every_s` seconds, and once more at its end.
        make: makes an environment from an id and `env_kwargs`.
        estimates: how long tasks take, learned from run to run.
        admission: how many episodes the policy can take, likewise.
    """

    @property
    def max_context(self) -> int | None:
        """Tokens that hold a prompt and its completion."""
        return self.limits.max_context

    def make_env(self, request: RolloutRequest) -> TextEnv:
        """An environment for the request."""
        return self.make(request.env_id, **self.env_kwargs)

    async def run(self, requests: Requests) -> AsyncGenerator[Trajectory, None]:
        """Yields one trajectory a request, as they finish; requests are drawn only when there is room.

        Requests are an iterable, or an asynchronous one that may still be growing.

        An exception that nobody declared is a bug: its trajectory ends as `CRASH`, every other request as
        `CANCELLED`, and after all have been yielded the run raises. Close the iterator early
        (`contextlib.aclosing`) and everything in flight is freed; the journal keeps what there was of it.

        Raises:
            UserError: a task, setting or request is wrong.
            RunAborted: an environment, tool or policy has a bug (`__cause__` is its exception), a part of the
                machinery stayed down, or too much failed.
        """
        run = Run(self, requests)
        async with run:
            while (trajectory := await run.delivery.take()) is not None:
                yield trajectory
            run.raise_failure()
