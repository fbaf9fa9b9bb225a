"""What a black-box agent asks a model, recorded token for token as the turns of a trajectory.

An agent sends the whole conversation each time. Where it has only grown since an earlier answer, the prompt is
that answer's exact tokens and the new messages; where the agent rewrote something, or speaks of something else
(a sub-agent, a summary), it is rendered whole and begins a sequence of its own.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from skyrl_gym.chat.dialects import Dialect
from skyrl_gym.chat.tracker import TokenTracker
from skyrl_gym.errors import MessageError
from skyrl_gym.messages import Conversation, Message
from skyrl_gym.outcomes import TurnResult
from skyrl_gym.policy.base import Completion, Policy, Prompt, Sampling
from skyrl_gym.rollout import Transition, Turn
from skyrl_gym.tools import ToolSpec

__all__ = ["Answer", "ContextFull", "Recorder"]


class ContextFull(MessageError):
    """The prompt leaves no room for an answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the policy said: as a message, as it was sampled, and after how many tokens (0: not known)."""

    message: Message
    completion: Completion
    prompt_tokens: int


@dataclass
class _Thread:
    """One conversation: what was said in it, its last answer included, and its tokens."""

    tools: tuple[ToolSpec, ...]
    said: Conversation
    tracker: TokenTracker | None
    session: str = field(default_factory=lambda: uuid.uuid4().hex)


class Recorder:
    """The model side of one episode.

    Args:
        policy: who answers.
        sampling: its settings; the agent may ask for fewer tokens, nothing else. A seed moves on each turn.
        dialect: reads calls out of text where the policy answers in text.
        max_context: longest prompt plus answer in tokens, or None.

    Attributes:
        opening: the messages of the first request.
        turns: one a request.
    """

    def __init__(self, policy: Policy, sampling: Sampling, dialect: Dialect, max_context: int | None = None) -> None:
        self.opening: Conversation = ()
        self.turns: list[Turn] = []
        self._policy = policy
        self._sampling = sampling
        self._dialect = dialect
        self._max_context = max_context
        self._threads: list[_Thread] = []
        self._last: _Thread | None = None

    async def complete(
        self, messages: Conversation, tools: Sequence[ToolSpec] = (), max_tokens: int | None = None
    ) -> Answer:
        """The policy's answer to a conversation.

        Raises:
            MessageError: there is no message, or no room for an answer.
            PolicyError: the policy failed.
        """
        if not messages:
            raise MessageError("a conversation has at least one message")
        thread, said = self._find(messages, tuple(tools))
        self._settle(said)
        step = None if thread.tracker is None else thread.tracker.advance(said)
        prompt = Prompt(said, thread.tools, None if step is None else step.prompt_ids, thread.session)
        started = time.perf_counter()
        completion = await self._policy.complete(prompt, self._fit(prompt, max_tokens))
        seconds = {"policy": time.perf_counter() - started}
        message = self._read(completion, thread.tools)
        transition = None
        if step is not None and thread.tracker is not None and completion.token_ids is not None:
            thread.tracker.record(completion.token_ids)
            follows = thread is self._last and not step.fork
            transition = Transition(
                step.input_ids if follows else step.prompt_ids,
                completion.token_ids,
                completion.logprobs,
                completion.policy_version,
                fork=not follows,
            )
        thread.said = (*said, message)
        self._last = thread
        self.turns.append(Turn(message, transition=transition, finish_reason=completion.finish_reason, seconds=seconds))
        return Answer(message, completion, len(prompt.token_ids or completion.prompt_token_ids or ()))

    def credit(self, result: TurnResult, seconds: float) -> None:
        """What a tool call that followed the latest answer came to, and how long it took."""
        if not self.turns:
            return
        turn = self.turns[-1]
        taken = {**turn.seconds, "tools": turn.seconds.get("tools", 0.0) + seconds}
        self.turns[-1] = replace(
            turn,
            reward=turn.reward + result.reward,
            invalid=turn.invalid or result.invalid,
            errors=turn.errors + result.errors,
            seconds=taken,
        )

    def _find(self, messages: Conversation, tools: tuple[ToolSpec, ...]) -> tuple[_Thread, Conversation]:
        """The longest thread that the conversation goes on from, else a new one; and the conversation in the
        words that were really said."""
        going_on = [t for t in self._threads if t.tools == tools and _goes_on(messages, t.said)]
        if going_on:
            thread = max(going_on, key=lambda t: len(t.said))
            return thread, (*thread.said, *messages[len(thread.said) :])
        renderer = self._policy.renderer
        thread = _Thread(tools, (), None if renderer is None else TokenTracker(renderer, tools))
        self._threads.append(thread)
        return thread, messages

    def _settle(self, said: Conversation) -> None:
        """Completes the latest turn with what followed it."""
        if self._last is None:
            self.opening = said
            return
        before = self._last.said
        grown = said[: len(before)] == before
        self.turns[-1] = replace(
            self.turns[-1], observations=said[len(before) :] if grown else said, context_edit=not grown
        )

    def _fit(self, prompt: Prompt, max_tokens: int | None) -> Sampling:
        sampling = self._sampling
        if sampling.seed is not None:
            sampling = replace(sampling, seed=sampling.seed + len(self.turns))
        most = min(sampling.max_tokens, max_tokens or sampling.max_tokens)
        if self._max_context is not None and prompt.token_ids is not None:
            most = min(most, self._max_context - len(prompt.token_ids))
        if most < 1:
            held = len(prompt.token_ids or ())
            raise ContextFull(
                f"the prompt has {held:,} tokens, and prompt and answer have room for {self._max_context:,}"
            )
        return replace(sampling, max_tokens=most)

    def _read(self, completion: Completion, tools: Sequence[ToolSpec]) -> Message:
        renderer = self._policy.renderer
        if completion.message is not None:
            message = completion.message
        elif renderer is not None and completion.token_ids is not None:
            message = renderer.parse(completion.token_ids, tools)
        else:
            message = self._dialect.parse(completion.text, tools)
        calls = (
            call if call.id else replace(call, id=f"call_{len(self.turns)}_{number}")
            for number, call in enumerate(message.tool_calls)
        )
        return replace(message, tool_calls=tuple(calls))


def _goes_on(messages: Conversation, said: Conversation) -> bool:
    """Whether a conversation begins with one that was said, and has more."""
    return len(messages) > len(said) and all(map(_same, messages, said))


def _same(given: Message, said: Message) -> bool:
    """Whether a message that an agent sends back is the one that was said; agents drop reasoning and empty text."""
    return _essence(given) == _essence(said)


def _essence(message: Message) -> tuple[Any, ...]:
    content = message.text if isinstance(message.content, str | None) else message.content
    calls = tuple((call.name, call.arguments, call.id) for call in message.tool_calls)
    return message.role, content, calls, message.tool_call_id
