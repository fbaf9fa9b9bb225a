"""What a turn and an episode come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from skyrl_gym.errors import ConfigError, StopReason
from skyrl_gym.messages import Conversation, Message

__all__ = ["Grade", "ResetTuple", "StepTuple", "Streaks", "TurnResult", "check_limits", "step_tuple"]

ResetTuple: TypeAlias = tuple[Conversation, dict[str, Any]]
"""Gymnasium's: observation, info."""
StepTuple: TypeAlias = tuple[Conversation, float, bool, bool, dict[str, Any]]
"""Gymnasium's: observation, reward, terminated, truncated, info."""


@dataclass(frozen=True, slots=True)
class Grade:
    """A reward and what it is made of. `metrics` are numbers for reports; they don't train.

    `artifacts` are texts by name that show what was graded, a patch for instance.
    """

    reward: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    artifacts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What one action led to. `stop` is set when the episode has ended; it is not graded yet.

    `errors` counts the calls that were answered with an error.
    """

    action: Message
    observations: Conversation
    reward: float = 0.0
    invalid: bool = False
    context_edit: bool = False
    errors: int = 0
    stop: StopReason | None = None


@dataclass(frozen=True, slots=True)
class Streaks:
    """What has happened in a row: unusable answers, and the same action with the same result.

    Polling something that moves is no repetition.
    """

    invalid: int = 0
    same: int = 0
    last: TurnResult | None = None

    def after(self, result: TurnResult) -> Streaks:
        """One turn later."""
        again = self.last is not None and _alike(self.last, result)
        return Streaks(self.invalid + 1 if result.invalid else 0, self.same + 1 if again else 1, result)

    def stop(self, max_invalid: int, max_same: int) -> StopReason | None:
        """The limit that is reached."""
        if self.invalid >= max_invalid:
            return StopReason.INVALID_CALLS
        return StopReason.REPEATED_ACTION if self.same >= max_same else None


def check_limits(**limits: int | None) -> None:
    """Refuses limits that leave nothing: elsewhere 0 or -1 often stands for no limit at all.

    Raises:
        ConfigError: one is below 1; None is a default.
    """
    for name, limit in limits.items():
        if limit is not None and limit < 1:
            raise ConfigError(f"{name} is at least 1, and for no limit a large number; got {limit}")


def _alike(one: TurnResult, other: TurnResult) -> bool:
    return (
        one.action.content == other.action.content
        and _calls(one) == _calls(other)
        and [message.content for message in one.observations] == [message.content for message in other.observations]
    )


def _calls(result: TurnResult) -> list[tuple[str, Any]]:
    return [(call.name, call.arguments) for call in result.action.tool_calls]


def step_tuple(task_id: str, conversation: Conversation, result: TurnResult, grade: Grade | None) -> StepTuple:
    """A turn as Gymnasium has it; `grade` is there where the episode has ended."""
    info: dict[str, Any] = {"task_id": task_id, "invalid": result.invalid}
    if result.stop is None or grade is None:
        return conversation, result.reward, False, False, info
    info |= {"stop_reason": result.stop.value, "metrics": dict(grade.metrics)}
    terminated = result.stop is StopReason.DONE
    return conversation, result.reward + grade.reward, terminated, not terminated, info
