"""One episode: ask the policy, act, until something ends it. Everything that happened is kept, whatever raises."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from skyrl_gym.alarm import Alarm
from skyrl_gym.chat.tracker import TokenTracker
from skyrl_gym.env import TextEnv, TurnResult
from skyrl_gym.errors import PolicyError, PolicyTimeout, StopReason, TurnTimeout
from skyrl_gym.messages import Message, assistant
from skyrl_gym.policy.base import Completion, Policy, Prompt, Sampling
from skyrl_gym.rollout.requests import Deadlines
from skyrl_gym.rollout.trajectory import Transition, Turn

__all__ = ["Episode"]


@dataclass
class Episode:
    """The run stage of one trajectory: `turns` grows as they happen, so a cut episode keeps what it has.

    Args:
        env: an environment that has been reset.
        policy: who answers.
        sampling: its settings; a seed is moved on by one each turn.
        clocks: the deadlines of a policy call and of a turn.
        max_context: longest prompt plus completion in tokens, or None.
        on_answer: told of each answer and how many tokens it has, before it is acted on.
    """

    env: TextEnv
    policy: Policy
    sampling: Sampling
    clocks: Deadlines
    max_context: int | None = None
    on_answer: Callable[[Turn, int], None] = lambda turn, tokens: None
    turns: list[Turn] = field(default_factory=list)

    def __post_init__(self) -> None:
        renderer = self.policy.renderer
        self._specs = self.env.tool_specs
        self._tracker = None if renderer is None else TokenTracker(renderer, self._specs)
        self._session = uuid.uuid4().hex
        self._alarm = Alarm()

    async def run(self) -> StopReason:
        """Plays to the end.

        Raises:
            PolicyError, SandboxError, EnvError: the machinery failed.
            TurnTimeout: a turn took too long.
        """
        turn = self._turn if self.clocks.turn_s is None else self._turn_within_its_clock
        try:
            while (stop := await turn()) is None:
                pass
        finally:
            self._alarm.close()
        return stop

    async def _turn_within_its_clock(self) -> StopReason | None:
        clock = asyncio.timeout(self.clocks.turn_s)
        try:
            async with clock:
                stop = await self._turn()
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise self._turn_timeout() from error
        if clock.expired():
            raise self._turn_timeout()
        return stop

    def _turn_timeout(self) -> TurnTimeout:
        return TurnTimeout(f"turn {len(self.turns)} took longer than {self.clocks.turn_s:g} s")

    async def _turn(self) -> StopReason | None:
        prompt, tracked = self._prompt()
        sampling = self._fit(prompt)
        if sampling is None:
            return StopReason.CONTEXT_FULL
        started = time.perf_counter()
        completion = await self._ask(prompt, sampling)
        asked = time.perf_counter()
        action = self._action(completion)
        turn = Turn(
            message=assistant(action) if isinstance(action, str) else action,
            transition=self._transition(completion, tracked),
            finish_reason=completion.finish_reason,
            seconds={"policy": asked - started},
        )
        self.on_answer(turn, _sampled(completion))
        if completion.finish_reason == "length":
            # A cut completion is never executed, even where it looks like a whole call.
            self.turns.append(turn)
            return StopReason.LENGTH
        result = await self._act(action, turn)
        seconds = {**turn.seconds, "tools": time.perf_counter() - asked}
        self.turns.append(_with_result(turn, result, seconds))
        return result.stop

    def _prompt(self) -> tuple[Prompt, tuple[tuple[int, ...], bool] | None]:
        conversation, tools = self.env.conversation, self._specs
        if self._tracker is None:
            return Prompt(conversation, tools, session=self._session), None
        step = self._tracker.advance(conversation)
        return Prompt(conversation, tools, step.prompt_ids, self._session), (step.input_ids, step.fork)

    def _fit(self, prompt: Prompt) -> Sampling | None:
        """The sampling for this turn, its token limit cut to what the context has room for; None: no room."""
        sampling = self.sampling
        if sampling.seed is not None:
            sampling = replace(sampling, seed=sampling.seed + len(self.turns))
        if self.max_context is None or prompt.token_ids is None:
            return sampling
        room = self.max_context - len(prompt.token_ids)
        return None if room < 1 else replace(sampling, max_tokens=min(sampling.max_tokens, room))

    async def _ask(self, prompt: Prompt, sampling: Sampling) -> Completion:
        try:
            with self._alarm.after(self.clocks.policy_s):
                completion = await self.policy.complete(prompt, sampling)
        except TimeoutError as error:
            if self._alarm.rang:
                raise self._policy_timeout() from error
            raise PolicyError(f"{self.policy.name} raised TimeoutError: {error}") from error
        except ConnectionError as error:
            raise PolicyError(f"{self.policy.name}: {error}") from error
        except asyncio.CancelledError as error:
            if _is_being_cancelled():
                raise
            raise PolicyError(f"{self.policy.name} cancelled itself") from error
        if self._alarm.rang:  # it held on to the answer through its cancellation
            raise self._policy_timeout()
        if completion.finish_reason == "abort":
            raise PolicyError(f"{self.policy.name} aborted the completion")
        return completion

    def _policy_timeout(self) -> PolicyTimeout:
        return PolicyTimeout(f"{self.policy.name} gave no answer within {self.clocks.policy_s:g} s")

    def _action(self, completion: Completion) -> Message | str:
        """The answer as a message, or as text that the environment's dialect parses."""
        if completion.message is None and self.policy.renderer is not None and completion.token_ids is not None:
            return self.policy.renderer.parse(completion.token_ids, self._specs)
        return completion.message or completion.text

    def _transition(self, completion: Completion, tracked: tuple[tuple[int, ...], bool] | None) -> Transition | None:
        if self._tracker is None or tracked is None or completion.token_ids is None:
            return None
        self._tracker.record(completion.token_ids)
        input_ids, fork = tracked
        return Transition(
            input_ids,
            completion.token_ids,
            completion.logprobs,
            completion.policy_version,
            fork,
            completion.token_versions,
        )

    async def _act(self, action: Message | str, turn: Turn) -> TurnResult:
        try:
            return await self.env.aturn(action)
        except BaseException:
            self.turns.append(turn)
            raise


def _sampled(completion: Completion) -> int:
    """How many tokens: by their ids, else as the server counts them."""
    if completion.token_ids is not None:
        return len(completion.token_ids)
    return completion.usage[1] if completion.usage else 0


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _with_result(turn: Turn, result: TurnResult, seconds: dict[str, float]) -> Turn:
    return Turn(
        message=result.action,
        observations=result.observations,
        transition=turn.transition,
        finish_reason=turn.finish_reason,
        reward=result.reward,
        invalid=result.invalid,
        context_edit=result.context_edit,
        errors=result.errors,
        seconds=seconds,
    )
