"""A policy whose answers are recorded: the same prompt with the same seed is answered from a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from skyrl_gym.chat import Renderer
from skyrl_gym.errors import ConfigError, PolicyError
from skyrl_gym.messages import from_openai, to_openai
from skyrl_gym.policy.base import Completion, Policy, Prompt, Sampling
from skyrl_gym.recording import Recording

__all__ = ["CachedPolicy"]


class CachedPolicy:
    """Another policy's answers, by the content of the prompt, the sampling and the policy's name.

    For policies whose weights stay as they are: after an update the name would have to change.

    Args:
        policy: who is asked where the folder has no answer.
        recording: a Recording, or what `Recording.of` takes ("replay:FOLDER").
    """

    def __init__(self, policy: Policy, recording: Recording | str | Mapping[str, Any]) -> None:
        self.name = policy.name
        self.recording = Recording.of(recording)
        self._policy = policy

    @property
    def renderer(self) -> Renderer | None:
        """The other policy's."""
        return self._policy.renderer

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """The recorded answer, or a new one.

        Raises:
            ConfigError: sampling without a seed, where every answer is another one.
            PolicyError: it is replayed, and there is no answer.
        """
        if sampling.seed is None and sampling.temperature > 0:
            raise ConfigError("recorded completions need a seed, or temperature 0: else every answer would be the same")

        async def ask() -> Any:
            return _encode(await self._policy.complete(prompt, sampling))

        answer = await self.recording.answer(self._question(prompt, sampling), f"a completion of {self.name}", ask)
        if answer is None:
            raise PolicyError(f"{self.recording.store.folder} has no recorded completion of {self.name} to this prompt")
        return _decode(answer)

    async def aclose(self) -> None:
        """Closes the other policy."""
        await self._policy.aclose()

    def _question(self, prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
        said: Any = prompt.token_ids
        if said is None:
            said = [[to_openai(m) for m in prompt.messages], [spec.to_openai() for spec in prompt.tools]]
        return {"policy": self.name, "sampling": asdict(sampling), "prompt": said}


def _encode(completion: Completion) -> dict[str, Any]:
    data = {name: getattr(completion, name) for name in completion.__slots__}
    return data | {"message": None if completion.message is None else to_openai(completion.message)}


def _decode(answer: Mapping[str, Any]) -> Completion:
    lists = {name: tuple(value) for name, value in answer.items() if isinstance(value, list)}
    message = None if answer["message"] is None else from_openai(answer["message"])
    return Completion(**{**answer, **lists, "message": message})
