"""Episodes of black-box agents: an environment, a model that is recorded, and a grade at the end."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from skyrl_gym.chat.dialects import get_dialect
from skyrl_gym.env import Grade, TextEnv
from skyrl_gym.errors import EnvError, GradeTimeout, MessageError, SkyRLError, StopReason, stop_reason_of
from skyrl_gym.messages import Conversation, ToolCall, to_openai
from skyrl_gym.policy.base import Policy, Sampling
from skyrl_gym.rollout import ErrorInfo, Journal, Trajectory
from skyrl_gym.serve.recorder import Answer, ContextFull, Recorder
from skyrl_gym.tasks import Task
from skyrl_gym.tools import ToolSpec

__all__ = ["Episode", "Gateway"]


@dataclass
class Episode:
    """One agent on one task."""

    env: TextEnv
    task: Task
    sample: int
    opening: Conversation
    recorder: Recorder
    setup_s: float
    stop: StopReason | None = None
    error: SkyRLError | None = None
    started: float = field(default_factory=time.perf_counter)

    def describe(self) -> dict[str, Any]:
        """What an agent is told at the start."""
        return {
            "task_id": self.task.id,
            "messages": [to_openai(message) for message in self.opening],
            "tools": [spec.to_openai() for spec in self.env.tool_specs],
        }

    async def call(self, call: ToolCall) -> dict[str, Any]:
        """Runs a tool of the environment.

        Raises:
            MessageError: the episode has ended.
            InfraError: the machinery failed; the episode is excluded.
        """
        began = time.perf_counter()
        try:
            result = await self.env.aturn(call)
        except SkyRLError as error:
            if not isinstance(error, MessageError):
                self.error = error
            raise
        self.recorder.credit(result, time.perf_counter() - began)
        return {
            "content": "\n".join(message.text for message in result.observations),
            "done": result.stop is not None,
        }


class Gateway:
    """Opens episodes, lets agents talk to the policy, and writes each one's trajectory into a journal.

    Args:
        env_id: what the trajectories are of.
        make: makes an environment.
        policy, sampling, max_context: who answers, and how; see `Recorder`.
        journal: where finished trajectories go; those in it already count as samples of their tasks.
        done: what is in the journal already.
        max_turns: answers of the model before an episode is truncated.
        grade_s: deadline of grading, in seconds.
    """

    def __init__(
        self,
        env_id: str,
        make: Callable[[], TextEnv],
        policy: Policy,
        sampling: Sampling,
        journal: Journal,
        *,
        done: Iterable[Trajectory] = (),
        max_context: int | None = None,
        max_turns: int = 200,
        dialect: str = "auto",
        grade_s: float = 900.0,
    ) -> None:
        self.policy = policy
        self._env_id = env_id
        self._make = make
        self._sampling = sampling
        self._journal = journal
        self._samples = Counter(trajectory.task_hash for trajectory in done)
        self._max_context = max_context
        self._max_turns = max_turns
        renderer = policy.renderer if dialect == "auto" else None
        self._dialect = get_dialect(dialect) if renderer is None else renderer.dialect
        self._grade_s = grade_s

    async def open(self, seed: int | None = None, task: Any = None) -> Episode:
        """A new episode.

        Raises:
            TaskError, ConfigError: no such task.
            InfraError: the environment could not be prepared.
        """
        began = time.perf_counter()
        env = self._make()
        try:
            opening, _ = await env.areset(seed=seed, options=None if task is None else {"task": task})
        except BaseException:
            await env.aclose()
            raise
        sample = self._samples[env.task.hash]
        self._samples[env.task.hash] += 1
        name = f"{self._sampling.seed}:{env.task.hash}:{sample}"
        seed = None if self._sampling.seed is None else int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
        recorder = Recorder(self.policy, replace(self._sampling, seed=seed), self._dialect, self._max_context)
        return Episode(env, env.task, sample, opening, recorder, time.perf_counter() - began)

    async def complete(
        self, episode: Episode, messages: Conversation, tools: tuple[ToolSpec, ...], max_tokens: int | None
    ) -> Answer:
        """The policy's answer; see `Recorder.complete`.

        Raises:
            MessageError: the turns or the context are used up.
            PolicyError: the policy failed; the episode is excluded.
        """
        if len(episode.recorder.turns) >= self._max_turns:
            episode.stop = StopReason.MAX_TURNS
            raise MessageError(f"the {self._max_turns} turns of this episode are used up")
        try:
            return await episode.recorder.complete(messages, tools, max_tokens)
        except ContextFull:
            episode.stop = StopReason.CONTEXT_FULL
            raise
        except SkyRLError as error:
            if not isinstance(error, MessageError):
                episode.error = error
            raise

    async def finish(self, episode: Episode, reason: StopReason = StopReason.DONE, failure: str = "") -> Trajectory:
        """Grades an episode, frees its environment and writes its trajectory.

        Args:
            reason: how the agent ended, unless the environment, a limit or a failure says otherwise.
            failure: what went wrong with the agent. One that never asked the model anything was not at work:
                its episode is excluded. Any other is graded as it stands.
        """
        run_s = time.perf_counter() - episode.started
        seconds = {"setup": episode.setup_s, "run": run_s}
        if failure and not episode.recorder.turns and episode.error is None:
            episode.error = EnvError(failure)
        stop = episode.env.stop_reason or episode.stop or reason
        if episode.error is not None:
            stop = stop_reason_of(episode.error)
        grade = None
        try:
            if stop.grade:
                began = time.perf_counter()
                grade = await self._grade(episode)
                seconds["grade"] = time.perf_counter() - began
        except SkyRLError as failure:
            stop, episode.error = stop_reason_of(failure), failure
        finally:
            await episode.env.aclose()
        trajectory = self._trajectory(episode, stop, grade, seconds)
        self._journal.append(trajectory)
        return trajectory

    async def _grade(self, episode: Episode) -> Grade:
        clock = asyncio.timeout(self._grade_s)
        try:
            async with clock:
                return await episode.env.agrade()
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise GradeTimeout(f"grading task {episode.task.id} took longer than {self._grade_s:g} s") from error

    def _trajectory(
        self, episode: Episode, stop: StopReason, grade: Grade | None, seconds: dict[str, float]
    ) -> Trajectory:
        turns = tuple(episode.recorder.turns)
        return Trajectory(
            self._env_id,
            episode.task.id,
            episode.task.hash,
            episode.task.id,
            episode.sample,
            stop,
            opening=episode.recorder.opening or episode.opening,
            turns=turns,
            reward=None if grade is None else grade.reward + sum(turn.reward for turn in turns),
            metrics={} if grade is None else dict(grade.metrics),
            artifacts={} if grade is None else dict(grade.artifacts),
            error=None if episode.error is None else ErrorInfo.of(episode.error),
            policy=self.policy.name,
            seconds=seconds,
        )
