"""One trajectory as a reader sees it: messages in order, calls and results side by side with their numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from skyrl_gym.evaluate.metrics import is_judged
from skyrl_gym.evaluate.report.diffs import Diff, edit_of, patch_in
from skyrl_gym.evaluate.report.text import clip
from skyrl_gym.messages import ImagePart, Message, ToolCall
from skyrl_gym.rollout import Trajectory, Turn

__all__ = ["Block", "Call", "Entry", "Room", "Span", "Step", "make_entry"]

OPEN_LINES, OPEN_CHARACTERS = 12, 1_000  # a tool result up to this long is shown unfolded
# Drawn by the browser without running or fetching anything; other images are shown by their address.
_SAFE_IMAGE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+")


@dataclass(frozen=True, slots=True)
class Room:
    """How much of a trajectory is shown: characters of one text, bytes of one image."""

    characters: int = 6_000
    image_bytes: int = 200_000


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call: its arguments one by one, or the text that is no JSON object."""

    name: str
    arguments: tuple[tuple[str, str], ...]
    preview: str
    diff: Diff = ()


@dataclass(frozen=True, slots=True)
class Block:
    """One message. `images` are data URLs that are safe to draw."""

    role: str
    label: str
    text: str
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    images: tuple[str, ...] = ()
    folded: bool = False
    diff: Diff = ()

    @property
    def lines(self) -> int:
        """How many lines of text."""
        return self.text.count("\n") + 1


@dataclass(frozen=True, slots=True)
class Step:
    """One turn: the policy's message and what followed."""

    number: int
    notes: tuple[str, ...]
    answer: Block
    context_edit: bool
    observations: tuple[Block, ...]
    has_tokens: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """A part of the timing bar: what took how long, and from where to where in per cent of the whole."""

    kind: str
    label: str
    start: float
    width: float


@dataclass(frozen=True, slots=True)
class Entry:
    """One trajectory."""

    id: str
    part: str
    task: str
    sample: int
    step: int | None
    outcome: str
    reward: float | None
    tokens: int
    numbers: tuple[tuple[str, str], ...]
    opening: tuple[Block, ...]
    steps: tuple[Step, ...]
    artifacts: tuple[Block, ...]
    error: tuple[str, str, str] | None
    timing: tuple[Span, ...] = ()

    @property
    def origin(self) -> str:
        """Where in the run it comes from."""
        if self.step is not None:
            return f"{self.part}, step {self.step}"
        return f"sample {self.sample}" if self.part == "evaluation" else f"{self.part}, sample {self.sample}"

    @property
    def shown_reward(self) -> str:
        """The reward, or a dash where there is none."""
        return "–" if self.reward is None else f"{self.reward:.2f}"


def make_entry(trajectory: Trajectory, part: str, identity: str, room: Room = Room()) -> Entry:
    """The trajectory in the form that the template shows."""
    error = trajectory.error
    versions = [turn.transition.policy_version for turn in trajectory.turns if turn.transition]
    return Entry(
        id=identity,
        part=part,
        task=trajectory.task_id,
        sample=trajectory.sample,
        # Sampled with the weights after `version` steps, a trajectory is of the step that follows.
        step=versions[0] + 1 if part == "training" and versions else None,
        outcome=trajectory.stop_reason.value,
        reward=trajectory.reward if is_judged(trajectory) else None,
        tokens=trajectory.sampled_tokens,
        numbers=tuple(_numbers(trajectory)),
        opening=tuple(_block(message, room) for message in trajectory.opening),
        steps=tuple(_step(number, turn, room) for number, turn in enumerate(trajectory.turns, 1)),
        artifacts=tuple(_artifact(name, clip(text, room.characters)) for name, text in trajectory.artifacts.items()),
        error=None if error is None else (error.type, clip(error.message), clip(error.traceback)),
        timing=_timing(trajectory),
    )


def _artifact(name: str, text: str) -> Block:
    return Block("artifact", name, text or "(empty)", diff=patch_in(text))


def _timing(trajectory: Trajectory) -> tuple[Span, ...]:
    """The stages and, within the run, the turns, one after the other."""
    seconds = trajectory.seconds
    parts = [("setup", "setup", seconds.get("setup", 0.0))]
    for number, turn in enumerate(trajectory.turns, 1):
        parts += [(kind, f"turn {number}, {kind}", turn.seconds.get(kind, 0.0)) for kind in ("policy", "tools")]
    parts.append(("grade", "grade", seconds.get("grade", 0.0)))
    total = sum(taken for _, _, taken in parts)
    spans, start = [], 0.0
    for kind, name, taken in parts:
        if taken > 0:
            width = 100 * taken / total
            spans.append(Span(kind, f"{name}: {taken:.2f} s", round(start, 3), round(width, 3)))
            start += width
    return tuple(spans)


def _numbers(trajectory: Trajectory) -> Iterator[tuple[str, str]]:
    yield "environment", trajectory.env_id
    yield "policy", trajectory.policy
    yield "attempt", str(trajectory.attempt + 1)
    for stage, taken in trajectory.seconds.items():
        yield stage, f"{taken:.2f} s"
    for name, value in trajectory.metrics.items():
        yield name, f"{value:.4g}"


def _step(number: int, turn: Turn, room: Room) -> Step:
    return Step(
        number,
        tuple(_notes(turn)),
        _block(turn.message, room),
        turn.context_edit,
        tuple(_block(message, room) for message in turn.observations),
        has_tokens=turn.transition is not None,
    )


def _notes(turn: Turn) -> Iterator[str]:
    yield from (f"{name} {taken:.2f} s" for name, taken in turn.seconds.items())
    if turn.transition:
        yield f"{len(turn.transition.sampled_ids):,} tokens"
    if turn.finish_reason != "stop":
        yield f"finish reason {turn.finish_reason}"
    if turn.reward:
        yield f"reward {turn.reward:+.3g}"
    if turn.invalid:
        yield "no usable call"


def _block(message: Message, room: Room) -> Block:
    parts = message.content if isinstance(message.content, tuple) else ()
    urls = [part.url for part in parts if isinstance(part, ImagePart)]
    images = tuple(url for url in urls if len(url) <= room.image_bytes and _SAFE_IMAGE.fullmatch(url))
    others = [f"[image: {url[:200]}]" for url in urls if url not in images]
    text = "\n".join([*([message.text] if message.text else []), *others])
    return Block(
        role=message.role,
        label=f"result of {message.name}" if message.role == "tool" and message.name else message.role,
        text=clip(text, room.characters),
        reasoning=clip(message.reasoning or "", room.characters),
        calls=tuple(_call(call, room) for call in message.tool_calls),
        images=images,
        folded=message.role == "system" or (message.role == "tool" and _is_long(text)),
        diff=patch_in(clip(text, room.characters)),
    )


def _is_long(text: str) -> bool:
    return len(text) > OPEN_CHARACTERS or text.count("\n") >= OPEN_LINES


def _call(call: ToolCall, room: Room) -> Call:
    if isinstance(call.arguments, str):
        return Call(call.name, (("not a JSON object", clip(call.arguments, room.characters)),), call.arguments[:80])
    values = [(str(name), clip(_as_text(value), room.characters)) for name, value in call.arguments.items()]
    preview = ", ".join(value for _, value in values).replace("\n", " ")
    return Call(call.name, tuple(values), preview[:80] + ("..." if len(preview) > 80 else ""), edit_of(call.arguments))


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
