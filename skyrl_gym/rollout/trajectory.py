"""What a rollout leaves behind: transitions, turns, one trajectory an episode; as values and as JSON."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from skyrl_gym.errors import StopReason
from skyrl_gym.messages import Conversation, Message, from_openai, to_openai

__all__ = ["ErrorInfo", "Trajectory", "Transition", "Turn"]

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Transition:
    """One policy call, token for token.

    Only what is new is stored: `input_ids` is the whole prompt when `fork` is set (the first call, or a
    rewritten context), else the ids that follow the previous call's prompt and sample. So an append-only
    episode takes memory linear in its length, and its prefix property holds by construction. `policy_version`
    is that of the weights for the first id, `token_versions` has one for each id where they changed on the way.
    """

    input_ids: tuple[int, ...]
    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    policy_version: int = 0
    fork: bool = False
    token_versions: tuple[int, ...] | None = None

    @property
    def versions(self) -> tuple[int, ...]:
        """The version of the weights for each sampled id."""
        return self.token_versions or (self.policy_version,) * len(self.sampled_ids)


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of the policy and what the environment said to it.

    `observations` are the messages that followed; `context_edit` says that they replace the conversation.
    `errors` counts the calls that were answered with an error; `seconds` holds the time in the policy and in the tools.
    """

    message: Message
    observations: Conversation = ()
    transition: Transition | None = None
    finish_reason: str = "stop"
    reward: float = 0.0
    invalid: bool = False
    context_edit: bool = False
    errors: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An exception as data."""

    type: str
    message: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> ErrorInfo:
        """From an exception, its causes included in the traceback."""
        return cls(type(error).__name__, str(error), "".join(traceback.format_exception(error)))


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode, whatever became of it.

    `reward` is None unless `stop_reason.valid`: nothing that was not graded becomes 0. `group` names the
    trajectories of one task that are compared with each other, `sample` this one among them. `artifacts` are texts
    by name that show what was graded.
    """

    env_id: str
    task_id: str
    task_hash: str
    group: str
    sample: int
    stop_reason: StopReason
    opening: Conversation = ()
    turns: tuple[Turn, ...] = ()
    reward: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: ErrorInfo | None = None
    attempt: int = 0
    policy: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    artifacts: Mapping[str, str] = field(default_factory=dict)

    @property
    def valid(self) -> bool:
        """The reward counts, for training and for the score."""
        return self.stop_reason.valid and self.reward is not None

    @property
    def key(self) -> tuple[str, str, int]:
        """What makes it this trajectory and no other, from run to run."""
        return (self.env_id, self.task_hash, self.sample)

    @property
    def sampled_tokens(self) -> int:
        """How many tokens the policy sampled."""
        return sum(len(turn.transition.sampled_ids) for turn in self.turns if turn.transition)

    def conversations(self) -> Iterator[Conversation]:
        """The conversations as the policy saw them: one, and one more for each context edit."""
        current = self.opening
        for turn in self.turns:
            current = (*current, turn.message)
            if turn.context_edit:
                yield current
                current = ()
            current = (*current, *turn.observations)
        yield current

    def prompts(self) -> Iterator[tuple[int, ...]]:
        """The exact prompt ids of each policy call that has them."""
        held: tuple[int, ...] = ()
        for turn in self.turns:
            if turn.transition is None:
                continue
            step = turn.transition
            prompt = step.input_ids if step.fork else held + step.input_ids
            yield prompt
            held = prompt + step.sampled_ids

    def to_json(self) -> dict[str, Any]:
        """JSON values; `from_json` gives an equal trajectory back."""
        return {
            "format": FORMAT,
            "env_id": self.env_id,
            "task_id": self.task_id,
            "task_hash": self.task_hash,
            "group": self.group,
            "sample": self.sample,
            "attempt": self.attempt,
            "policy": self.policy,
            "stop_reason": self.stop_reason.value,
            "reward": self.reward,
            "metrics": dict(self.metrics),
            "artifacts": dict(self.artifacts),
            "seconds": dict(self.seconds),
            "error": None if self.error is None else asdict(self.error),
            "opening": [to_openai(message) for message in self.opening],
            "turns": [_turn_to_json(turn) for turn in self.turns],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trajectory:
        """A trajectory from its JSON values."""
        same = (
            "env_id",
            "task_id",
            "task_hash",
            "group",
            "sample",
            "attempt",
            "policy",
            "reward",
            "metrics",
            "seconds",
        )
        return cls(
            **{name: data[name] for name in same},
            artifacts=data.get("artifacts", {}),  # older files have none
            stop_reason=StopReason(data["stop_reason"]),
            error=None if data["error"] is None else ErrorInfo(**data["error"]),
            opening=tuple(from_openai(message) for message in data["opening"]),
            turns=tuple(_turn_from_json(turn) for turn in data["turns"]),
        )


def _turn_to_json(turn: Turn) -> dict[str, Any]:
    return {
        "message": to_openai(turn.message),
        "observations": [to_openai(message) for message in turn.observations],
        "transition": None if turn.transition is None else asdict(turn.transition),
        "finish_reason": turn.finish_reason,
        "reward": turn.reward,
        "invalid": turn.invalid,
        "context_edit": turn.context_edit,
        "errors": turn.errors,
        "seconds": dict(turn.seconds),
    }


def _turn_from_json(data: Mapping[str, Any]) -> Turn:
    same = ("finish_reason", "reward", "invalid", "context_edit", "seconds")
    return Turn(
        message=from_openai(data["message"]),
        observations=tuple(from_openai(message) for message in data["observations"]),
        transition=_transition_from_json(data["transition"]),
        errors=data.get("errors", 0),
        **{name: data[name] for name in same},
    )


def _transition_from_json(data: Mapping[str, Any] | None) -> Transition | None:
    if data is None:
        return None
    logprobs = data["logprobs"]
    return Transition(
        tuple(data["input_ids"]),
        tuple(data["sampled_ids"]),
        None if logprobs is None else tuple(logprobs),
        data["policy_version"],
        data["fork"],
        None if data.get("token_versions") is None else tuple(data["token_versions"]),
    )
