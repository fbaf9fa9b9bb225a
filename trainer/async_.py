"""Rollouts that go on while the trainer steps, at most so many steps behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing

import torch

from skyrl_gym.background import BackgroundLoop
from skyrl_gym.errors import ConfigError, RunAborted, StopReason
from skyrl_gym.rollout import RolloutRequest, Runner, Trajectory
from skyrl_gym.trainer.resume import Finished
from skyrl_gym.trainer.source import Share, TrainedPolicy
from skyrl_gym.trainer.stream import Draw, TaskStream

__all__ = ["AsyncSource"]

_STOPPED = frozenset({StopReason.CRASH, StopReason.CANCELLED})  # how trajectories end in a run that has a bug


class AsyncSource:
    """Plays ahead of the trainer: while a step is taken, the groups of the next `staleness` steps are played.

    Groups are handed out in the order in which they were begun, so short episodes are not favoured, a run that
    is repeated from its journal is the same, and the bound holds by construction: a group is begun only once
    fewer than `staleness + 1` steps' worth of groups stand before it, so when it is trained on, no token of it
    was sampled from weights more than `staleness` steps old. New weights are taken while episodes are under way:
    their later turns are sampled from them, and each token keeps the version that it was sampled from.

    Args:
        stream: which tasks.
        group_size: trajectories of a task.
        groups_per_step: of all processes together; a multiple of their number.
        staleness: steps that a token may be older than the weights it trains; 0 plays and steps by turns.
        runner: plays them, all in one run that ends with the training.
        policy: whom the runner asks.
        loop: where it runs.
        share: of this process, in whole groups.
        finished: trajectories of an earlier run of this training.

    Raises:
        ConfigError: groups that can't be shared out evenly.
    """

    def __init__(
        self,
        stream: TaskStream,
        group_size: int,
        groups_per_step: int,
        staleness: int,
        runner: Runner,
        policy: TrainedPolicy,
        loop: BackgroundLoop,
        share: Share = Share(),
        finished: Finished | None = None,
    ) -> None:
        if groups_per_step % share.world:
            raise ConfigError(
                f"asynchronous training shares out whole groups: prompts_per_step, {groups_per_step}, must be a "
                f"multiple of the processes, {share.world}"
            )
        self.position = stream.position
        self._stream = stream
        self._size = group_size
        self._groups_per_step = groups_per_step
        self._ahead = (staleness + 1) * groups_per_step
        self._runner = runner
        self._policy = policy
        self._loop = loop
        self._share = share
        self._finished = finished or Finished()
        self._step_began = stream.position
        self._groups: dict[int, _Group] = {}  # begun or being waited for, by number
        self._bound = stream.position  # groups before it may be begun
        self._room = asyncio.Event()
        self._playing: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._failed = asyncio.Event()

    def sync(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Copies the weights over, whatever is under way; a step begins."""
        self._step_began = self.position
        self._policy.load_weights(weights, version)

    def draw(self, groups: int) -> list[Trajectory]:
        """This process's share of the next groups, once they are there."""
        return self._loop.run(self._draw(groups))

    def close(self) -> None:
        """Stops what is under way."""
        self._loop.run(self._stop())

    async def _draw(self, groups: int) -> list[Trajectory]:
        first, self.position = self.position, self.position + groups
        self._bound = max(self._bound, self._step_began + self._ahead, self.position)
        self._room.set()
        if self._playing is None:
            self._playing = asyncio.create_task(self._play())
        found: list[Trajectory] = []
        for number in range(first, self.position):
            # After a failure nothing more comes in, of groups that nobody waited for when it came either.
            if self._failure is None and number % self._share.world == self._share.rank:
                found += await self._group(number).whole(self._size)
                del self._groups[number]
        if self._failure is None and any(trajectory.stop_reason in _STOPPED for trajectory in found):
            await self._failed.wait()  # the run yields everything before it raises
        if self._failure is not None:
            raise self._failure
        return found

    async def _requests(self) -> AsyncIterator[RolloutRequest]:
        """Without end: the next request, as soon as its group may be begun."""
        while True:
            while self._stream.position >= self._bound:
                self._room.clear()
                await self._room.wait()
            draw = self._stream.next()
            if draw.number % self._share.world == self._share.rank:
                for request in self._missing(draw):
                    yield request

    async def _play(self) -> None:
        try:
            async with aclosing(self._runner.run(self._requests())) as played:
                async for trajectory in played:
                    self._take(trajectory)
            raise RunAborted("the run of rollouts ended before the training; leave its run_s unset")
        except Exception as error:  # noqa: BLE001 - handed to whoever waits for a group
            self._failure = error
            self._failed.set()
            for group in self._groups.values():
                group.ready.set()

    def _missing(self, draw: Draw) -> list[RolloutRequest]:
        """What of a group is not finished already."""
        finished, missing = self._finished.take(draw.requests(self._size))
        for trajectory in finished:
            self._take(trajectory)
        return missing

    def _take(self, trajectory: Trajectory) -> None:
        group = self._group(trajectory.sample // self._size)
        group.trajectories[trajectory.sample] = trajectory
        if len(group.trajectories) == self._size:
            group.ready.set()

    def _group(self, number: int) -> _Group:
        return self._groups.setdefault(number, _Group())

    async def _stop(self) -> None:
        if self._playing is not None:
            self._playing.cancel()
            await asyncio.wait({self._playing})


class _Group:
    """The trajectories of one group, as they come in."""

    def __init__(self) -> None:
        self.trajectories: dict[int, Trajectory] = {}
        self.ready = asyncio.Event()

    async def whole(self, size: int) -> list[Trajectory]:
        """All of them, in order; fewer where rollouts have ended."""
        if len(self.trajectories) < size:
            await self.ready.wait()
        return [self.trajectories[sample] for sample in sorted(self.trajectories)]
