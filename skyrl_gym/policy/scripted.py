"""A policy that says what it is told to: for tests, demonstrations and baselines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from skyrl_gym.chat import Renderer
from skyrl_gym.errors import PolicyError
from skyrl_gym.messages import Message, ToolCall, assistant
from skyrl_gym.policy.base import Completion, Prompt, Sampling

__all__ = ["Answer", "ScriptedPolicy"]

Answer: TypeAlias = str | Message | ToolCall | Sequence[ToolCall]


class ScriptedPolicy:
    """Answers from a function of the prompt, or from a list, one entry a call.

    With a renderer it answers in token ids, like a model: text is tokenised, and the end of turn added.

    Raises:
        PolicyError: on a call past the end of the list.
    """

    def __init__(
        self, answers: Callable[[Prompt], Answer] | Sequence[Answer], *, renderer: Renderer | None = None
    ) -> None:
        self.name = "scripted"
        self.renderer = renderer
        self.calls = 0
        self._answers = answers

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """The next answer."""
        answer = self._answers(prompt) if callable(self._answers) else self._entry(self.calls)
        self.calls += 1
        if self.renderer is None:
            return _as_completion(answer)
        return self._in_tokens(self.renderer, _as_text(self.renderer, answer), sampling)

    async def aclose(self) -> None:
        """Holds nothing."""

    def _entry(self, index: int) -> Answer:
        if callable(self._answers) or index >= len(self._answers):
            raise PolicyError(f"the script has ended: call {index + 1}")
        return self._answers[index]

    def _in_tokens(self, renderer: Renderer, text: str, sampling: Sampling) -> Completion:
        ids = [*renderer.tokenizer.encode(text, add_special_tokens=False), min(renderer.eos_ids)]
        cut = ids[: sampling.max_tokens]
        return Completion(text, "length" if len(cut) < len(ids) else "stop", tuple(cut))


def _as_completion(answer: Answer) -> Completion:
    match answer:
        case str():
            return Completion(answer)
        case Message():
            return Completion(answer.text, message=answer)
        case ToolCall():
            return Completion("", message=assistant(None, answer))
        case _:
            return Completion("", message=assistant(None, *answer))


def _as_text(renderer: Renderer, answer: Answer) -> str:
    if isinstance(answer, str):
        return answer
    return renderer.dialect.render(_as_completion(answer).message or assistant(""))
