"""What every dialect does: read a completion into a message, write a message as a model would."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from skyrl_gym.messages import Message, ToolCall, decode_arguments
from skyrl_gym.tools import ToolSpec

__all__ = ["Dialect", "TextDialect", "call_of_json", "malformed", "typed_value"]


class Dialect(Protocol):
    """How calls are written and read.

    `ends` are the tokens that end a turn, where a chat template alone doesn't tell.
    """

    name: str
    ends: tuple[str, ...]

    def parse(self, text: str, tools: Sequence[ToolSpec] = ()) -> Message:
        """The assistant message that a completion's text stands for; never raises.

        `tools` give types to the values of dialects that write them without.
        """
        ...

    def render(self, message: Message) -> str:
        """An assistant message as the model would write it, its end of turn left out."""
        ...

    def render_call(self, call: ToolCall) -> str:
        """One call as the model would write it."""
        ...

    def render_result(self, text: str) -> str:
        """A tool's result, for chat templates that know no tool role."""
        ...

    def tools_prompt(self, tools: Sequence[ToolSpec]) -> str:
        """A section for the system prompt, for chat templates that know no tools."""
        ...


class TextDialect(ABC):
    """A dialect whose calls stand between marks; `<think>` blocks are set apart first.

    Whatever stands in a thought is no call, and a `<think>` inside a call is part of its arguments: the mark
    that comes first counts. A thought without an end takes the rest of the text.
    """

    name: str
    ends: tuple[str, ...] = ()
    form: str
    """One call as it is shown in the system prompt."""
    pattern: str
    """A regular expression for one block of calls."""

    @abstractmethod
    def read(self, found: re.Match[str], tools: Sequence[ToolSpec]) -> list[ToolCall] | None:
        """The calls of one block; None: it is none, and stays in the content."""

    @abstractmethod
    def render_call(self, call: ToolCall) -> str:
        """One call as the model would write it."""

    @cached_property
    def _scanner(self) -> re.Pattern[str]:
        return re.compile(rf"<think>(?P<thought>.*?)(?:</think>|\Z)|{self.pattern}", re.DOTALL)

    def parse(self, text: str, tools: Sequence[ToolSpec] = ()) -> Message:
        """Text around calls and thoughts is the content, byte for byte."""
        thoughts: list[str] = []
        kept: list[str] = []
        calls: list[ToolCall] = []
        text, at = self._with_opened_thought(text), 0
        for found in self._scanner.finditer(text):
            block = [] if found["thought"] is not None else self.read(found, tools)
            if block is None:
                continue
            kept.append(text[at : found.start()])
            at = found.end()
            calls += block
            if found["thought"] is not None:
                thoughts.append(found["thought"])
        content = "".join([*kept, text[at:]])
        return Message(
            "assistant",
            content if content.strip() or not calls else None,
            tool_calls=tuple(calls),
            reasoning="".join(thoughts) if thoughts else None,
        )

    def _with_opened_thought(self, text: str) -> str:
        """Some prompts open the thought themselves, and the completion has only its end."""
        before, end, _ = text.partition("</think>")
        return f"<think>{text}" if end and not self._scanner.search(before) else text

    def render(self, message: Message) -> str:
        """Thought, content, calls."""
        thought = "" if message.reasoning is None else f"<think>{message.reasoning}</think>"
        calls = self.render_calls(message.tool_calls)
        return thought + (f"{message.text}\n{calls}" if message.text and calls else message.text or calls)

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """Several calls of one message."""
        return "\n".join(self.render_call(call) for call in calls)

    def render_result(self, text: str) -> str:
        """A result between tags."""
        return f"<tool_response>\n{text}\n</tool_response>"

    def tools_prompt(self, tools: Sequence[ToolSpec]) -> str:
        """Signatures, not JSON schemas: a small model that never saw a tool follows them far better."""
        lines = "\n".join(f"{spec.signature()}: {' '.join(spec.description.split())}" for spec in tools)
        return f"Tools:\n{lines}\nCall a tool like this: {self.form}"


def malformed(name: str, body: str) -> ToolCall:
    """A call whose structure can't be read: its arguments are what the model wrote, never an object."""
    text = body.strip() or "(empty)"
    return ToolCall(name, text if isinstance(decode_arguments(text), str) else f"(outside a call) {text}")


def call_of_json(body: str, *, closed: bool = True) -> ToolCall:
    """A call from `{"name": ..., "arguments" or "parameters": {...}}`."""
    try:
        value = json.loads(body) if closed else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        found = re.search(r'"name"\s*:\s*"([^"\\]*)"', body)
        return malformed(found[1] if found else "", body)
    return ToolCall(value["name"], decode_arguments(value.get("arguments", value.get("parameters", {}))))


def typed_value(text: str, tool: str, argument: str, tools: Sequence[ToolSpec]) -> Any:
    """A value that was written without its type, as the tool's schema has it; as text where it doesn't fit."""
    schema = next((spec.parameters.get("properties", {}).get(argument) for spec in tools if spec.name == tool), None)
    kinds = _kinds(schema or {})
    if not kinds or "string" in kinds:
        return text
    try:
        value = json.loads({"True": "true", "False": "false", "None": "null"}.get(text.strip(), text))
    except (ValueError, RecursionError):
        return text
    return value if any(isinstance(value, _PYTHON[kind]) for kind in kinds if kind in _PYTHON) else text


_PYTHON: dict[str, type | tuple[type, ...]] = {
    "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict, "null": type(None),
}  # fmt: skip


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    """The JSON types that a schema allows; empty: any."""
    if "$ref" in schema or "allOf" in schema:
        return {"object"}
    for key in ("anyOf", "oneOf"):
        if key in schema:
            parts = [_kinds(part) for part in schema[key]]
            return set().union(*parts) if all(parts) else set()
    kind = schema.get("type")
    if kind is None and "enum" in schema:
        return {"string"} if all(isinstance(value, str) for value in schema["enum"]) else {"number"}
    return set([kind] if isinstance(kind, str) else kind or ())
