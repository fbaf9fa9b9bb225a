"""Where a re-executed episode first differs from its record."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from skyrl_gym.errors import StopReason
from skyrl_gym.evaluate.scripts import Played
from skyrl_gym.messages import ImagePart, Message
from skyrl_gym.rollout import Trajectory, Turn

__all__ = ["DIVERGED", "Divergence", "first_divergence"]

DIVERGED = "replay_diverged"
"""The metric of a trajectory graded anew: 1 where its actions were answered otherwise than in the record."""

# The runner, not the environment, ended these: the record of actions just stops.
BY_THE_RUNNER = frozenset({StopReason.CONTEXT_FULL, StopReason.LENGTH, StopReason.EPISODE_TIMEOUT})


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference: `step` is "opening", "turn 3", "end" or "grade"; `diff` a unified diff."""

    step: str
    diff: str


def first_divergence(
    recorded: Trajectory, played: Played, *, ignore: re.Pattern[str] | None = None, grade: bool = True
) -> Divergence | None:
    """The first step at which two executions of the same actions differ, or None.

    Args:
        ignore: text that may differ (times, temporary names).
        grade: compare the reward and the metrics, too.
    """
    grades = [("grade", list(_grade(recorded)), list(_grade(played.trajectory)))] if grade else []
    for step, before, after in (*_steps(recorded, played), *grades):
        if ignore is not None:
            before, after = ([ignore.sub("*", line) for line in lines] for lines in (before, after))
        if before != after:
            lines = difflib.unified_diff(before, after, "recorded", "replayed", lineterm="")
            return Divergence(step, "\n".join(lines))
    return None


def _steps(recorded: Trajectory, played: Played) -> Iterator[tuple[str, list[str], list[str]]]:
    """The steps of both as lines, in order."""
    replayed = played.trajectory
    yield "opening", list(_messages(recorded.opening)), list(_messages(replayed.opening))
    for number, turn in enumerate(recorded.turns, 1):
        again = replayed.turns[number - 1] if number <= len(replayed.turns) else None
        yield f"turn {number}", list(_turn(turn)), [_ending(replayed)] if again is None else list(_turn(again))
    if not (played.ran_out and recorded.stop_reason in BY_THE_RUNNER):
        went_on = "the episode went on" if played.ran_out else _ending(replayed)
        yield "end", [_ending(recorded)], [went_on]


def _turn(turn: Turn) -> Iterator[str]:
    yield from _messages(turn.observations)
    yield f"reward {turn.reward:g}"
    if turn.invalid:
        yield "the action was invalid"
    if turn.context_edit:
        yield "the conversation was replaced"


def _messages(messages: tuple[Message, ...]) -> Iterator[str]:
    for message in messages:
        yield f"[{message.role}]{f' answers {message.tool_call_id}' if message.tool_call_id else ''}"
        yield from message.text.split("\n")
        for call in message.tool_calls:
            yield f"-> {call.name}({call.arguments_json()})"
        if isinstance(message.content, tuple):
            yield from (_image(part) for part in message.content if isinstance(part, ImagePart))


def _image(part: ImagePart) -> str:
    return f"<image {hashlib.sha256(part.url.encode()).hexdigest()[:16]}>"


def _ending(trajectory: Trajectory) -> str:
    error = f": {trajectory.error.message}" if trajectory.error else ""
    return f"ended with {trajectory.stop_reason.value}{error}"


def _grade(trajectory: Trajectory) -> Iterator[str]:
    yield f"reward {trajectory.reward!r}"
    yield from (f"{name} {value!r}" for name, value in sorted(trajectory.metrics.items()) if name != DIVERGED)
