"""What a turn and an episode come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from skyrl_gym.errors import StopReason
from skyrl_gym.messages import Conversation, Message

__all__ = ["Grade", "TurnResult"]


@dataclass(frozen=True, slots=True)
class Grade:
    """A reward and what it is made of. `metrics` are numbers for reports; they don't train."""

    reward: float
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What one action led to. `stop` is set when the episode has ended; it is not graded yet."""

    action: Message
    observations: Conversation
    reward: float = 0.0
    invalid: bool = False
    context_edit: bool = False
    stop: StopReason | None = None
