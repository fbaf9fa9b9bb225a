"""TokenTracker: the exact prompt of every policy call of an episode, by appending and never by re-tokenising."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from skyrl_gym.chat.renderer import Renderer
from skyrl_gym.messages import Conversation, Message
from skyrl_gym.tools import ToolSpec

__all__ = ["PromptStep", "TokenTracker"]


class PromptStep(NamedTuple):
    """`prompt_ids` is the whole prompt; `input_ids` what is new in it: all of it when `fork` is set."""

    prompt_ids: tuple[int, ...]
    input_ids: tuple[int, ...]
    fork: bool


class TokenTracker:
    """The token side of one episode.

    While the conversation only grows, a prompt is the previous prompt, the ids that were sampled, and the
    template's ids for the new messages. A rewritten conversation, or a template that rewrites history, is
    rendered whole: a fork, counted in `forks`.
    """

    def __init__(self, renderer: Renderer, tools: Sequence[ToolSpec]) -> None:
        self.forks = 0
        self._renderer = renderer
        self._tools = tools
        self._held: tuple[int, ...] = ()
        self._seen: Conversation = ()
        self._answered = False

    def advance(self, conversation: Conversation) -> PromptStep:
        """The prompt for the conversation as it stands now."""
        new = self._new_messages(conversation)
        self._seen = conversation
        if new is None:
            prompt = self._renderer.prompt_ids(conversation, self._tools)
            self.forks += bool(self._held)
            step = PromptStep(prompt, prompt, fork=True)
        else:
            ended = self._held[-1] in self._renderer.eos_ids
            added = self._renderer.extend(new, ended=ended)
            step = PromptStep(self._held + added, added, fork=False)
        self._held = step.prompt_ids
        self._answered = False
        return step

    def record(self, sampled_ids: Sequence[int]) -> None:
        """The ids that the policy sampled after the latest prompt."""
        self._held += tuple(sampled_ids)
        self._answered = True

    def _new_messages(self, conversation: Conversation) -> Conversation | None:
        """What follows the sampled assistant message, or None when the conversation was rewritten."""
        known = len(self._seen)
        grown = (
            self._answered
            and len(conversation) > known
            and conversation[known].role == "assistant"
            # The very objects: comparing texts would cost the length of the history every turn.
            and all(a is b or a == b for a, b in zip(conversation, self._seen, strict=False))
        )
        if not grown or self._rewritten(conversation[known], conversation[known + 1 :]):
            return None
        return conversation[known + 1 :]

    def _rewritten(self, answer: Message, new: Conversation) -> bool:
        """The template would now write the history in another way (it strips thoughts, say)."""
        after: Literal["user", "tool"] = "tool" if all(message.role == "tool" for message in new) else "user"
        thinking = answer.reasoning is not None or "</think>" in answer.text
        return self._renderer.rewrites_history(after, thinking=thinking)
