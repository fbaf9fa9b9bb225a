"""Where the trainer gets its trajectories from, and how the policy gets the trainer's weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

import torch

from skyrl_gym.background import BackgroundLoop
from skyrl_gym.policy.base import Policy
from skyrl_gym.rollout import RolloutRequest, Runner, Trajectory
from skyrl_gym.trainer.resume import Finished
from skyrl_gym.trainer.stream import TaskStream

__all__ = ["RolloutSource", "Share", "SyncSource", "TrainedPolicy"]


class TrainedPolicy(Policy, Protocol):
    """A policy whose weights can be replaced while it runs."""

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Takes weights by name; completions that begin later carry this version."""
        ...


class RolloutSource(Protocol):
    """Makes trajectories under given weights."""

    @property
    def position(self) -> int:
        """How many groups have been drawn, on all processes together."""
        ...

    def sync(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """From now on, sample from these weights. Called on all processes together."""
        ...

    def draw(self, groups: int) -> list[Trajectory]:
        """This process's share of the next groups, of which all processes together draw so many."""
        ...

    def close(self) -> None:
        """Stops whatever is under way."""
        ...


@dataclass(frozen=True)
class Share:
    """Which part of the work is this process's."""

    rank: int = 0
    world: int = 1

    def of(self, requests: Sequence[RolloutRequest]) -> Sequence[RolloutRequest]:
        """Every `world`-th request."""
        return requests[self.rank :: self.world]


class SyncSource:
    """Rolls out when asked to, and waits for it: what is trained on is sampled from the weights of the step.

    Args:
        stream: which tasks.
        group_size: trajectories of a task.
        runner: plays them.
        policy: whom the runner asks.
        loop: where it runs.
        share: of this process.
        finished: trajectories of an earlier run of this training, taken in place of playing them again.
    """

    def __init__(
        self,
        stream: TaskStream,
        group_size: int,
        runner: Runner,
        policy: TrainedPolicy,
        loop: BackgroundLoop,
        share: Share = Share(),
        finished: Finished | None = None,
    ) -> None:
        self._stream = stream
        self._size = group_size
        self._runner = runner
        self._policy = policy
        self._loop = loop
        self._share = share
        self._finished = finished or Finished()

    @property
    def position(self) -> int:
        """How many groups have been drawn."""
        return self._stream.position

    def sync(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Copies the weights over."""
        self._policy.load_weights(weights, version)

    def draw(self, groups: int) -> list[Trajectory]:
        """Plays this process's share of the next groups."""
        drawn = [request for _ in range(groups) for request in self._stream.next().requests(self._size)]
        return self._loop.run(self._play(self._share.of(drawn)))

    def close(self) -> None:
        """Nothing is under way between two draws."""

    async def _play(self, requests: Iterable[RolloutRequest]) -> list[Trajectory]:
        """One trajectory for each request, in the order of the requests."""
        wanted = list(requests)
        finished, missing = self._finished.take(wanted)
        by_key = {trajectory.key: trajectory for trajectory in finished}
        async with aclosing(self._runner.run(missing)) as played:
            async for trajectory in played:
                by_key[trajectory.key] = trajectory
        return [by_key[request.key] for request in wanted]
