"""Who answers: the policy protocol and the values it takes and gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

from skyrl_gym.messages import Conversation, Message
from skyrl_gym.tools import ToolSpec

if TYPE_CHECKING:
    from skyrl_gym.chat import Renderer

__all__ = ["Completion", "FinishReason", "Policy", "PolicyLoad", "Prompt", "ReportsLoad", "Sampling"]

FinishReason: TypeAlias = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. `max_tokens` bounds one completion; `seed` makes it repeatable where the policy can."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 512
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a policy is asked: the conversation and tools, and their exact token ids if it has a renderer.

    Prompts of one `session` share their beginning: a policy of several servers sends them to the same one.
    """

    messages: Conversation
    tools: tuple[ToolSpec, ...] = ()
    token_ids: tuple[int, ...] | None = None
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer.

    `token_ids` are the ids really sampled, the end-of-turn id included when the model wrote it; `logprobs`
    has one natural logarithm for each, under the distribution that was sampled from, or is None where the
    policy doesn't know them. `message` is set by policies that answer in messages; for the others the
    renderer parses it from the ids. `prompt_token_ids` are the server's own, where it templated the messages.
    `policy_version` counts the weights that the first id was sampled under; where they changed on the way,
    `token_versions` has the version of each id.
    `usage` is the number of tokens of the prompt and of the sample as a server counts them.
    """

    text: str
    finish_reason: FinishReason = "stop"
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    policy_version: int = 0
    message: Message | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    token_versions: tuple[int, ...] | None = None
    usage: tuple[int, int] | None = None


class Policy(Protocol):
    """Answers prompts, many at a time.

    With a `renderer`, prompts carry token ids (token in, token out); without one the policy reads messages.
    """

    name: str

    @property
    def renderer(self) -> Renderer | None:
        """What turns messages into this policy's token ids."""
        ...

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """One completion. Cancelling it frees what it holds.

        Raises:
            PolicyError: it could not answer for a reason that a retry may cure.
            ConfigError: the request itself can't be served (unknown model, logprobs refused).
        """
        ...

    async def aclose(self) -> None:
        """Frees connections, threads and memory; may be called twice."""
        ...


@dataclass(frozen=True, slots=True)
class PolicyLoad:
    """How busy a policy is, over all its servers: requests being decoded, requests queued behind them,
    the share of the KV cache in use (0 to 1; of the fullest server), and how many requests it decodes at once;
    None where it isn't told."""

    running: int
    waiting: int
    kv_cache: float | None = None
    places: int | None = None


@runtime_checkable
class ReportsLoad(Protocol):
    """A policy that can say how busy it is, so that whoever sends it work can hold some back."""

    async def current_load(self) -> PolicyLoad:
        """The load now, or as last seen a moment ago.

        Raises:
            PolicyError: no server could say.
        """
        ...
