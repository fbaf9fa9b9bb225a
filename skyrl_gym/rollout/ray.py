"""The runner over a Ray cluster: the same engine, with environments on as many machines as there are."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace

from skyrl_gym.errors import StopReason, stop_reason_of
from skyrl_gym.policy.base import Policy
from skyrl_gym.rollout.attempt import Attempt, Places, Setting
from skyrl_gym.rollout.engine import Run
from skyrl_gym.rollout.intake import Requests
from skyrl_gym.rollout.requests import RolloutLimits, RolloutRequest
from skyrl_gym.rollout.runner import Runner, RunSettings
from skyrl_gym.rollout.stage import outlast
from skyrl_gym.rollout.trajectory import Trajectory
from skyrl_gym.rollout.workers import Cluster, Orders, Played, Workers

__all__ = ["Cluster", "RayRunner"]


@dataclass(frozen=True)
class RayRunner(RunSettings[Callable[[], Policy]]):
    """Plays many episodes at once on the workers of a Ray cluster.

    What is asked for, tried again and written down is decided here, where `run` is called; a worker that dies costs
    its trajectories one try. Environments, tools and calls of the policy are in the workers.

    Args:
        policy: makes the policy, in each worker and once here: one that asks a server, which all of them reach.
        cluster: where the workers live.
        limits: `live`, `setup`, `run` and `grade` are those of one worker.
        make: makes an environment from an id and `env_kwargs`, in a worker.
        sampling, env_kwargs, deadlines, journal, failures, on_metrics, metrics_every_s, estimates: as of `Runner`.
    """

    cluster: Cluster = Cluster()

    async def run(self, requests: Requests) -> AsyncGenerator[Trajectory, None]:
        """Yields one trajectory a request, as they finish; see `Runner.run`.

        Raises:
            UserError: a task, setting or request is wrong.
            MissingDependency: Ray isn't installed.
            RunAborted: as `Runner.run`, or there was no worker for `failures.give_up_s` seconds.
        """
        orders = Orders(self.policy, self.sampling, self.env_kwargs, self.limits, self.deadlines, self.make)
        async with Workers(self.cluster, orders, self.failures.give_up_s) as workers:
            driver = self._driver(workers.count)

            def attempt(runner: Runner, places: Places, request: RolloutRequest, number: int) -> Attempt:
                return _RemoteAttempt(workers, runner, places, request, number)

            try:
                run = Run(driver, requests, attempt)
                async with run:
                    while (trajectory := await run.delivery.take()) is not None:
                        yield trajectory
                    run.raise_failure()
            finally:
                await driver.policy.aclose()

    def _driver(self, workers: int) -> Runner:
        """What the engine here goes by: as many attempts in flight as the workers have places for."""
        each = self.limits
        limits = replace(
            RolloutLimits.bounded(workers * each.live),
            retries=each.retries,
            max_context=each.max_context,
            close_groups_at=each.close_groups_at,
        )
        return Runner(
            self.policy(),
            self.sampling,
            self.env_kwargs,
            limits,
            self.deadlines,
            self.journal,
            self.failures,
            self.on_metrics,
            self.metrics_every_s,
            estimates=self.estimates,
            admission=self.admission,
        )


_TICKETS = itertools.count()


class _RemoteAttempt(Attempt):
    """A try that a worker makes."""

    def __init__(
        self, workers: Workers, setting: Setting, places: Places, request: RolloutRequest, number: int
    ) -> None:
        super().__init__(setting, places, request, number)
        self._workers = workers
        self._played: Trajectory | None = None

    async def run(self) -> Trajectory:
        try:
            await self._places.to_run()
            played = await self._elsewhere()
        except Exception as error:  # noqa: BLE001 - the boundary where a failure becomes a typed outcome
            self.error = error
            return self.trajectory(stop_reason_of(error))
        finally:
            self._places.leave()
        self._take_over(played)
        return played.trajectory

    async def _elsewhere(self) -> Played:
        member = await self._workers.take()
        ticket = next(_TICKETS)
        playing = asyncio.create_task(member.play(ticket, self.request, self.number))
        try:
            await asyncio.wait({playing})
            return playing.result()
        except asyncio.CancelledError:
            member.stop(ticket)
            clocks = self._setting.deadlines
            await outlast(playing, clocks.teardown_s + 2 * clocks.stop_s)
            if playing.done() and not playing.cancelled() and playing.exception() is None:
                self._take_over(playing.result())
            playing.cancel()
            raise
        finally:
            self._workers.give_back(member)

    def _take_over(self, played: Played) -> None:
        """Tells the run what it would have seen in a process of its own."""
        self.error, self.leaked, self._played = played.error, played.leaked, played.trajectory
        if played.trajectory.opening:
            self._places.prepared()
        for turn in played.trajectory.turns:
            self._places.answered(turn, len(turn.transition.sampled_ids) if turn.transition else 0)

    @property
    def begun(self) -> bool:
        return self._played is not None and bool(self._played.opening)

    def trajectory(self, reason: StopReason) -> Trajectory:
        if self._played is None:
            return super().trajectory(reason)
        return replace(self._played, stop_reason=reason, reward=self._played.reward if reason.valid else None)
