"""One place of a vector: an environment whose failures end its own episode and nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from gymnasium.vector import AutoresetMode

from skyrl_gym.env import TextEnv
from skyrl_gym.errors import (
    EnvError,
    GradeError,
    GradeTimeout,
    InfraError,
    SetupError,
    SetupTimeout,
    SkyRLError,
    StopReason,
    TurnTimeout,
    stop_reason_of,
)
from skyrl_gym.messages import Conversation, assistant
from skyrl_gym.outcomes import Grade, TurnResult, step_tuple
from skyrl_gym.rollout import Deadlines
from skyrl_gym.rollout.stage import close_in_time, typed
from skyrl_gym.spaces import Action

__all__ = ["Arrival", "Slot"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Arrival:
    """What one environment of a vector gave: Gymnasium's five values, and which of them it was."""

    env_id: int
    observation: Conversation
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]

    @property
    def ended(self) -> bool:
        """The episode is over."""
        return self.terminated or self.truncated


class Slot:
    """An environment by its number, with Gymnasium's rules for what follows the end of an episode.

    Args:
        number: its place in the vector.
        make: makes its environment; called again where one has failed.
        clocks: those for setup, turn, grade and teardown count; the others are a runner's.
        mode: what a step does once an episode has ended.
    """

    def __init__(self, number: int, make: Callable[[], TextEnv], clocks: Deadlines, mode: AutoresetMode) -> None:
        self.number = number
        self.env = make()
        self.observation: Conversation = ()
        self.hindrance: str | None = "has no episode yet"  # why it can't step
        self._make = make
        self._clocks = clocks
        self._mode = mode
        self._ended = False
        self._spoilt = False
        self._unprepared: InfraError | None = None

    async def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> Arrival:
        """Begins an episode. One that could not be prepared is empty, and its first step truncates it."""
        self.hindrance, self._ended, self._unprepared = None, False, None
        if self._spoilt:
            await self._renew()
        try:
            work = self.env.areset(seed=seed, options=options)
            self.observation, info = await self._do("setup", work, self._clocks.setup_s, SetupTimeout, SetupError)
        except InfraError as error:
            await self._drop()
            self._unprepared, self.observation, info = error, (), self._failure(error)
        except BaseException:
            self._spoil("was stopped in its last reset")
            raise
        return Arrival(self.number, self.observation, 0.0, False, False, info)

    async def step(self, action: Action) -> Arrival:
        """One action; the autoreset mode says what it does at and after the end of an episode."""
        if self._ended and self._mode is AutoresetMode.NEXT_STEP:
            return await self.reset()
        arrival = await self._play(action)
        self.observation, self._ended = arrival.observation, arrival.ended
        if not arrival.ended or self._mode is AutoresetMode.NEXT_STEP:
            return arrival
        if self._mode is AutoresetMode.DISABLED:
            self.hindrance = "has ended its episode"
            return arrival
        begun = await self.reset()
        last = {"final_obs": arrival.observation, "final_info": arrival.info}
        return replace(arrival, observation=begun.observation, info=last | begun.info)

    async def aclose(self) -> None:
        """Frees what there is, within the teardown clock."""
        closing = asyncio.create_task(self.env.aclose(), name=f"teardown of environment {self.number}")
        _, interrupted = await close_in_time(closing, self._clocks.teardown_s, stop_s=self._clocks.stop_s)
        if interrupted is not None:
            raise interrupted

    async def _play(self, action: Action) -> Arrival:
        if self._unprepared is not None:
            return Arrival(self.number, (), 0.0, False, True, self._failure(self._unprepared))
        try:
            result, grade = await self._turn(action)
        except InfraError as error:
            failed = Arrival(self.number, self.env.conversation, 0.0, False, True, self._failure(error))
            await self._drop()
            return failed
        except BaseException:
            self._spoil("was stopped in its last step")
            raise
        return Arrival(self.number, *step_tuple(self.env.task.id, self.env.conversation, result, grade))

    async def _turn(self, action: Action) -> tuple[TurnResult, Grade | None]:
        clocks = self._clocks
        try:
            result = await self._do("turn", self.env.aturn(action), clocks.turn_s, TurnTimeout, EnvError)
        except TurnTimeout:
            # The agent's failure: graded as things stand.
            result = TurnResult(assistant(None), (), stop=StopReason.TURN_TIMEOUT)
        if result.stop is None:
            return result, None
        return result, await self._do("grade", self.env.agrade(), clocks.grade_s, GradeTimeout, GradeError)

    async def _do(
        self,
        stage: str,
        work: Coroutine[Any, Any, T],
        limit_s: float | None,
        expired: type[SkyRLError],
        failed: type[SkyRLError],
    ) -> T:
        task = asyncio.create_task(work, name=f"{stage} of environment {self.number}")
        return await typed(task, limit_s, stop_s=self._clocks.stop_s, expired=expired, failed=failed)

    def _failure(self, error: InfraError) -> dict[str, Any]:
        text = f"{type(error).__name__}: {error}"
        return {"task_id": self.env.task.id, "stop_reason": stop_reason_of(error).value, "error": text}

    def _spoil(self, hindrance: str | None = None) -> None:
        """The next reset has a fresh environment."""
        self._spoilt, self.hindrance = True, hindrance

    async def _drop(self) -> None:
        """Frees now what a failed environment holds."""
        self._spoil()
        await self.aclose()

    async def _renew(self) -> None:
        """A fresh environment, which draws its tasks as the old one would have gone on to."""
        await self.aclose()
        fresh = self._make()
        fresh.np_random = self.env.np_random
        self.env, self._spoilt = fresh, False
