"""The runner: N requests in, N typed trajectories out, whatever raises or hangs."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from skyrl_gym.env import Grade, TextEnv
from skyrl_gym.errors import (
    EpisodeTimeout,
    GradeTimeout,
    RunAborted,
    SetupTimeout,
    SkyRLError,
    StopReason,
    UserError,
    stop_reason_of,
)
from skyrl_gym.policy.base import Policy, Sampling
from skyrl_gym.registration import make_env
from skyrl_gym.rollout.episode import Episode
from skyrl_gym.rollout.journal import Journal
from skyrl_gym.rollout.requests import Deadlines, RolloutLimits, RolloutRequest
from skyrl_gym.rollout.trajectory import ErrorInfo, Trajectory

__all__ = ["Runner"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Runner:
    """Plays many episodes at once against one policy.

    Args:
        policy: who answers.
        sampling: its settings; a seed gives every trajectory and turn its own, independent of scheduling.
        env_kwargs: constructor arguments of the environments.
        limits, deadlines: the run's bounds.
        journal: where finished trajectories are written before they are yielded.
        make: makes an environment from an id and `env_kwargs`.
    """

    policy: Policy
    sampling: Sampling = Sampling()
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    limits: RolloutLimits = RolloutLimits()
    deadlines: Deadlines = Deadlines()
    journal: Journal | None = None
    make: Callable[..., TextEnv] = make_env

    async def run(self, requests: Iterable[RolloutRequest]) -> AsyncGenerator[Trajectory, None]:
        """Yields one trajectory a request, as they finish; requests are drawn only when there is room.

        An exception that nobody declared is a bug: its trajectory ends as `CRASH`, every other request as
        `CANCELLED`, and after all have been yielded the run raises. Close the iterator early
        (`contextlib.aclosing`) and everything in flight is freed.

        Raises:
            UserError: a task, setting or request is wrong.
            RunAborted: an environment, tool or policy has a bug; `__cause__` is its exception.
        """
        run = _Run(self, iter(requests))
        supervisor = asyncio.create_task(run.supervise())
        try:
            while (trajectory := await run.results.get()) is not None:
                yield trajectory
            await supervisor
        finally:
            supervisor.cancel()
            await asyncio.gather(supervisor, return_exceptions=True)


class _Run:
    """The state of one call of `Runner.run`."""

    def __init__(self, runner: Runner, requests: Iterator[RolloutRequest]) -> None:
        limits = runner.limits
        self.runner = runner
        self.requests = requests
        self.results: asyncio.Queue[Trajectory | None] = asyncio.Queue(maxsize=limits.live)
        self.setup = asyncio.Semaphore(limits.setup)
        self.grade = asyncio.Semaphore(limits.grade)
        self.unfinished: list[Trajectory] = []
        self.bug: BaseException | None = None

    async def supervise(self) -> None:
        """Runs the workers to the end, accounts for what they left, then says that nothing follows."""
        try:
            ending = await self._run_workers()
            for trajectory in self.unfinished:
                await self.results.put(replace(trajectory, stop_reason=ending))
            for request in self.requests:
                await self.results.put(_empty(request, ending, self.runner.policy.name))
        except Exception as error:  # noqa: BLE001 - raised below, once the reader has been released
            self.bug = error
        await self.results.put(None)
        if isinstance(self.bug, UserError):
            raise self.bug
        if self.bug is not None:
            raise RunAborted(f"stopped by a bug: {type(self.bug).__name__}: {self.bug}") from self.bug

    async def _run_workers(self) -> StopReason:
        """Gives the ending of whatever the workers did not finish."""
        clock = asyncio.timeout(self.runner.deadlines.run_s)
        try:
            async with clock:
                await self._work_all()
        except TimeoutError:
            if not clock.expired():
                raise
            return StopReason.RUN_TIMEOUT
        return StopReason.CANCELLED

    async def _work_all(self) -> None:
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(self.runner.limits.live):
                    workers.create_task(self._work())
        except* _Stop:
            pass

    async def _work(self) -> None:
        for request in self.requests:
            trajectory = await self._try(request)
            if self.runner.journal is not None:
                # On the loop, not in a thread: a line is on disk before its trajectory is seen by anyone.
                self._write(self.runner.journal, trajectory)
            await self.results.put(trajectory)
            if self.bug is not None:
                raise _Stop

    def _write(self, journal: Journal, trajectory: Trajectory) -> None:
        try:
            journal.append(trajectory)
        except OSError as error:
            self.bug = self.bug or UserError(
                f"can't write the journal {journal.path}: {error.strerror}; what was finished before is kept"
            )

    async def _try(self, request: RolloutRequest) -> Trajectory:
        for attempt in range(self.runner.limits.retries + 1):
            play = _Attempt(self, request, attempt)
            try:
                trajectory = await play.run()
            except asyncio.CancelledError:
                self.unfinished.append(play.trajectory(StopReason.CANCELLED))
                raise
            if play.bug is not None:
                self.bug = self.bug or play.bug
            if not trajectory.stop_reason.retry or attempt == self.runner.limits.retries:
                return trajectory
            _log.warning("%s, attempt %d: %s; trying again", request.task.id, attempt + 1, trajectory.stop_reason)
            await asyncio.sleep(min(30.0, 0.25 * 2**attempt) * random.uniform(0.5, 1.5))
        raise AssertionError("a negative number of retries")


class _Stop(Exception):
    """Ends the workers after a bug."""


class _Attempt:
    """One try at one request: setup, run, grade, teardown."""

    def __init__(self, run: _Run, request: RolloutRequest, attempt: int) -> None:
        self.run_state = run
        self.runner = run.runner
        self.request = request
        self.attempt = attempt
        self.seconds: dict[str, float] = {}
        self.episode: Episode | None = None
        self.opening: Any = ()
        self.grade = Grade(0.0)
        self.graded = False
        self.error: BaseException | None = None
        self.bug: BaseException | None = None

    async def run(self) -> Trajectory:
        env: TextEnv | None = None
        try:
            env = self.runner.make(self.request.env_id, **self.runner.env_kwargs)
            reason = await self._stages(env)
        except SkyRLError as error:
            reason, self.error = stop_reason_of(error), error
        except Exception as error:  # noqa: BLE001 - the boundary where a bug becomes a typed outcome
            reason, self.error = StopReason.CRASH, error
        finally:
            if env is not None:
                await self._close(env)
        if reason is StopReason.CRASH:
            self.bug = self.error
        return self.trajectory(reason)

    async def _stages(self, env: TextEnv) -> StopReason:
        clocks = self.runner.deadlines
        async with self._stage("setup", clocks.setup_s, SetupTimeout, self.run_state.setup):
            self.opening, _ = await env.areset(options={"task": self.request.task})
        self.episode = Episode(
            env, self.runner.policy, self._sampling(), clocks.policy_s, self.runner.limits.max_context
        )
        try:
            async with self._stage("run", clocks.episode_s, EpisodeTimeout):
                reason = await self.episode.run()
        except EpisodeTimeout as error:
            reason, self.error = StopReason.EPISODE_TIMEOUT, error
        if reason.grade:
            async with self._stage("grade", clocks.grade_s, GradeTimeout, self.run_state.grade):
                self.grade = await env.agrade()
                self.graded = True
        return reason

    @asynccontextmanager
    async def _stage(
        self, name: str, limit_s: float, expired: type[SkyRLError], slots: asyncio.Semaphore | None = None
    ) -> AsyncIterator[None]:
        """A stage with its deadline, its slot and its time taken; waiting for the slot isn't counted."""
        if slots is not None:
            await slots.acquire()
        started = time.perf_counter()
        clock = asyncio.timeout(limit_s)
        try:
            async with clock:
                yield
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise expired(f"{name} of task {self.request.task.id} took longer than {limit_s:g} s") from error
        finally:
            self.seconds[name] = time.perf_counter() - started
            if slots is not None:
                slots.release()

    async def _close(self, env: TextEnv) -> None:
        """Closes the environment even while this task is being cancelled; one that hangs is left and reported."""
        limit_s = self.runner.deadlines.teardown_s
        closing = asyncio.create_task(env.aclose())
        try:
            await asyncio.wait({closing}, timeout=limit_s)
        except asyncio.CancelledError:
            await asyncio.wait({closing}, timeout=limit_s)
            raise
        finally:
            if not closing.done():
                closing.cancel()
                _log.error("task %s: teardown did not end within %g s: a leak", self.request.task.id, limit_s)
            elif closing.exception() is not None:
                _log.error("task %s: teardown failed", self.request.task.id, exc_info=closing.exception())

    def _sampling(self) -> Sampling:
        base = self.runner.sampling
        if base.seed is None:
            return base
        name = f"{base.seed}:{self.request.task.hash}:{self.request.sample}"
        return replace(base, seed=int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]))

    def trajectory(self, reason: StopReason) -> Trajectory:
        """What there is so far, ended by `reason`."""
        turns = tuple(self.episode.turns) if self.episode else ()
        reward = self.grade.reward + sum(turn.reward for turn in turns) if self.graded else None
        return replace(
            _empty(self.request, reason, self.runner.policy.name),
            opening=self.opening,
            turns=turns,
            reward=reward if reason.valid else None,
            metrics=dict(self.grade.metrics) if self.graded else {},
            error=None if self.error is None else ErrorInfo.of(self.error),
            attempt=self.attempt,
            seconds=self.seconds,
        )


def _empty(request: RolloutRequest, reason: StopReason, policy: str) -> Trajectory:
    task = request.task
    return Trajectory(request.env_id, task.id, task.hash, request.group, request.sample, reason, policy=policy)
