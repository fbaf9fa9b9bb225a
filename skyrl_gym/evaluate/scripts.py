"""Playing what is known beforehand: recorded turns, a gold solution or nothing at all, with no model.

Each script goes through the real runner, so a sandbox that dies is retried and every clock holds, and its
end is an end like any other. Bugs end the script as `CRASH` and leave the others alone.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from skyrl_gym.errors import RunAborted
from skyrl_gym.messages import Message, ToolCall, assistant
from skyrl_gym.policy import Completion, Prompt, Sampling
from skyrl_gym.rollout import Deadlines, RolloutLimits, RolloutRequest, Runner, Trajectory
from skyrl_gym.spaces import Action

__all__ = ["Played", "ScriptPlayer", "completion_of", "each"]

T = TypeVar("T")
R = TypeVar("R")

_log = logging.getLogger(__name__)
# A completion that was cut is never executed and ends the episode, which is graded as it stands.
_END = Completion("", "length", message=assistant(""))


@dataclass(frozen=True, slots=True)
class Played:
    """What became of a script; `ran_out` says that it ended before the episode did."""

    trajectory: Trajectory
    ran_out: bool


@dataclass(frozen=True)
class ScriptPlayer:
    """Plays scripts in environments with the same settings.

    Args:
        name: who the trajectories say has answered.
        env_kwargs: constructor arguments of the environments.
        retries: how often a script is tried again after a failure of the machinery.
        deadlines: of each script.
    """

    name: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    retries: int = 2
    deadlines: Deadlines = Deadlines()

    async def play(self, request: RolloutRequest, answers: Sequence[Completion]) -> Played:
        """Plays one script in a fresh environment and grades what it leaves.

        Raises:
            UserError: a task or setting is wrong.
        """
        for attempt in range(self.retries + 1):
            played = await self._try(request, answers)
            reason = played.trajectory.stop_reason
            if not reason.retry or attempt == self.retries:
                break
            _log.warning("%s, attempt %d: %s; trying again", request.task.id, attempt + 1, reason)
            await asyncio.sleep(0.25 * 2**attempt * random.uniform(0.5, 1.5))
        return replace(played, trajectory=replace(played.trajectory, attempt=attempt))

    async def _try(self, request: RolloutRequest, answers: Sequence[Completion]) -> Played:
        policy = _ScriptPolicy(self.name, answers)
        limits = RolloutLimits(live=1, setup=1, grade=1, retries=0)
        runner = Runner(policy, env_kwargs=self.env_kwargs, limits=limits, deadlines=self.deadlines)
        ended: list[Trajectory] = []
        with suppress(RunAborted):  # the trajectory tells of the bug
            async for trajectory in runner.run([request]):
                ended.append(trajectory)
        trajectory = ended[0]
        return Played(replace(trajectory, turns=trajectory.turns[: len(answers)]), policy.ran_out)


class _ScriptPolicy:
    """Gives the answers of one script in their order, then ends the episode."""

    renderer = None

    def __init__(self, name: str, answers: Sequence[Completion]) -> None:
        self.name = name
        self.ran_out = False
        self._answers = iter(answers)

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        answer = next(self._answers, None)
        self.ran_out = answer is None
        return _END if answer is None else answer

    async def aclose(self) -> None:
        """Holds nothing."""


def completion_of(action: Action) -> Completion:
    """An action as the completion of a policy that answers in messages; text stays text."""
    match action:
        case str():
            return Completion(action)
        case Message():
            return Completion(action.text, message=action)
        case ToolCall():
            return Completion("", message=assistant(None, action))
    return Completion("", message=assistant(None, *action))


async def each(items: Iterable[T], work: Callable[[T], Awaitable[R]], at_once: int) -> AsyncGenerator[R, None]:
    """The results of `work` on each item as they come, `at_once` of them at a time; items are drawn when needed.

    Close it early (`contextlib.aclosing`) and what is under way is cancelled.
    """
    running: set[asyncio.Future[R]] = set()
    try:
        for item in items:
            running.add(asyncio.ensure_future(work(item)))
            if len(running) >= at_once:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        while running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                yield future.result()
    finally:
        for future in running:
            future.cancel()
        await asyncio.gather(*running, return_exceptions=True)
