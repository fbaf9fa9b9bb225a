"""One try at one trajectory: setup, run, grade, teardown; each on time, and each failure typed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from skyrl_gym.env import Grade, TextEnv
from skyrl_gym.errors import (
    EnvError,
    EpisodeTimeout,
    GradeError,
    GradeTimeout,
    SetupError,
    SetupTimeout,
    SkyRLError,
    StopReason,
    TurnTimeout,
    stop_reason_of,
)
from skyrl_gym.messages import Conversation
from skyrl_gym.policy.base import Policy, Sampling
from skyrl_gym.rollout.episode import Episode
from skyrl_gym.rollout.metrics import Stuck
from skyrl_gym.rollout.requests import Deadlines, RolloutRequest
from skyrl_gym.rollout.stage import close_in_time, typed
from skyrl_gym.rollout.trajectory import ErrorInfo, Trajectory, Turn
from skyrl_gym.sandbox import to_be_asked_again

__all__ = ["Attempt", "Places", "Setting", "never_begun"]

T = TypeVar("T")


class Setting(Protocol):
    """What attempts need of their runner."""

    @property
    def policy(self) -> Policy:
        """Who answers."""
        ...

    @property
    def sampling(self) -> Sampling:
        """Its settings."""
        ...

    @property
    def deadlines(self) -> Deadlines:
        """The clocks."""
        ...

    @property
    def max_context(self) -> int | None:
        """Tokens that hold a prompt and its completion."""
        ...

    def make_env(self, request: RolloutRequest) -> TextEnv:
        """An environment for the request."""
        ...


class Places(Protocol):
    """The places that attempts of one run share. An attempt begins with one in the setup stage."""

    async def to_run(self) -> None:
        """Leaves the setup stage and waits for a place to run."""
        ...

    async def to_grade(self) -> None:
        """Leaves the run stage and waits for a place to grade."""
        ...

    def leave(self) -> None:
        """Gives back whatever place is held."""
        ...

    def prepared(self) -> None:
        """An environment could be prepared."""
        ...

    def answered(self, turn: Turn, tokens: int) -> None:
        """The policy has answered, with so many tokens."""
        ...


class Attempt:
    """One try. `trajectory` gives what there is of it at any time."""

    def __init__(self, setting: Setting, places: Places, request: RolloutRequest, number: int) -> None:
        self.request = request
        self.number = number
        self.error: BaseException | None = None
        self.leaked = False
        self._setting = setting
        self._places = places
        self._clock = asyncio.get_running_loop().time
        self._seconds: dict[str, float] = {}
        self._opening: Conversation = ()
        self._episode: Episode | None = None
        self._grade: Grade | None = None
        self._stage: tuple[str, float, float, asyncio.Task[Any]] | None = None

    async def run(self) -> Trajectory:
        """Plays to the end. Cancelled, it frees what it holds before it ends."""
        env: TextEnv | None = None
        try:
            env = self._setting.make_env(self.request)
            reason = await self._stages(env)
        except SkyRLError as error:
            reason, self.error = stop_reason_of(error), error
        except Exception as error:  # noqa: BLE001 - the boundary where a bug becomes a typed outcome
            reason, self.error = StopReason.CRASH, error
        finally:
            self._places.leave()
            if env is not None:
                await self._close(env)
        return self.trajectory(reason)

    async def _stages(self, env: TextEnv) -> StopReason:
        clocks = self._setting.deadlines
        self._opening = await self._do("setup", self._prepare(env), clocks.setup_s, SetupTimeout, SetupError)
        self._places.prepared()
        await self._places.to_run()
        reason = await self._play(env, clocks.episode_s)
        if reason.grade:
            await self._places.to_grade()
            self._grade = await self._do("grade", env.agrade(), clocks.grade_s, GradeTimeout, GradeError)
        return reason

    async def _prepare(self, env: TextEnv) -> Conversation:
        with to_be_asked_again(self.request.samples > 1):
            opening, _ = await env.areset(options={"task": self.request.task})
        return opening

    async def _play(self, env: TextEnv, limit_s: float) -> StopReason:
        setting = self._setting
        self._episode = Episode(
            env, setting.policy, self._sampling(), setting.deadlines, setting.max_context, self._places.answered
        )
        try:
            return await self._do("run", self._episode.run(), limit_s, EpisodeTimeout, EnvError)
        except (EpisodeTimeout, TurnTimeout) as error:
            self.error = error
            return stop_reason_of(error)

    async def _do(
        self,
        stage: str,
        work: Coroutine[Any, Any, T],
        limit_s: float,
        expired: type[SkyRLError],
        failed: type[SkyRLError],
    ) -> T:
        """A stage with its deadline and its time taken; waiting for a place isn't counted."""
        task = asyncio.create_task(work, name=f"{stage} of task {self.request.task.id}")
        began = self._clock()
        self._stage = (stage, began, limit_s, task)
        try:
            return await typed(task, limit_s, stop_s=self._setting.deadlines.stop_s, expired=expired, failed=failed)
        finally:
            self._stage = None
            self._seconds[stage] = self._clock() - began

    async def _close(self, env: TextEnv) -> None:
        """Closes the environment, also while this attempt is being cancelled; one that hangs is left and reported."""
        clocks = self._setting.deadlines
        closing = asyncio.create_task(env.aclose(), name=f"teardown of task {self.request.task.id}")
        self.leaked, interrupted = await close_in_time(closing, clocks.teardown_s, stop_s=clocks.stop_s)
        if interrupted is not None:
            raise interrupted

    def _sampling(self) -> Sampling:
        base = self._setting.sampling
        if base.seed is None:
            return base
        name = f"{base.seed}:{self.request.task.hash}:{self.request.sample}"
        return replace(base, seed=int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]))

    # ---- seen from outside

    @property
    def begun(self) -> bool:
        """There is something to keep of it."""
        return bool(self._opening)

    def in_stage(self) -> tuple[str, float, float, asyncio.Task[Any]] | None:
        """The stage, when it began, its limit in seconds, and its task; None between stages."""
        return self._stage

    def stuck(self, stage: str, seconds: float, limit_s: float, stack: tuple[str, ...]) -> Stuck:
        """That it is stuck, as a value."""
        return Stuck(self.request.task.id, self.request.sample, stage, seconds, limit_s, stack)

    def trajectory(self, reason: StopReason) -> Trajectory:
        """What there is so far, ended by `reason`."""
        turns = tuple(self._episode.turns) if self._episode else ()
        grade = self._grade
        earned = None if grade is None else grade.reward + sum(turn.reward for turn in turns)
        return replace(
            never_begun(self.request, reason, self._setting.policy.name),
            opening=self._opening,
            turns=turns,
            reward=earned if reason.valid else None,
            metrics={} if grade is None else dict(grade.metrics),
            artifacts={} if grade is None else dict(grade.artifacts),
            error=None if self.error is None else ErrorInfo.of(self.error),
            attempt=self.number,
            seconds=dict(self._seconds),
        )


def never_begun(request: RolloutRequest, reason: StopReason, policy: str) -> Trajectory:
    """The trajectory of a request that nobody worked on."""
    task = request.task
    return Trajectory(request.env_id, task.id, task.hash, request.group, request.sample, reason, policy=policy)
