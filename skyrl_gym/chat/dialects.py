"""Dialects: how a model family writes tool calls in text.

A dialect is one class and one line of `_DIALECTS`. Parsing never raises: whatever a model writes becomes
a message, and a call that can't be read becomes a `ToolCall` whose `arguments` is the raw text, so that the
environment can answer with what is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Protocol

from skyrl_gym.errors import ConfigError
from skyrl_gym.messages import Message, ToolCall, decode_arguments

__all__ = ["Dialect", "HermesDialect", "get_dialect"]


class SpecLike(Protocol):
    """The part of a ToolSpec that a prompt shows."""

    @property
    def description(self) -> str:
        """What the tool does."""
        ...

    def signature(self) -> str:
        """One line: name(argument: type, ...)."""
        ...


class Dialect(Protocol):
    """How calls are written and read."""

    name: str

    def parse(self, text: str) -> Message:
        """The assistant message that a completion's text stands for; never raises."""
        ...

    def render_call(self, call: ToolCall) -> str:
        """One call as the model would write it."""
        ...

    def render_result(self, text: str) -> str:
        """A tool's result, for chat templates that know no tool role."""
        ...

    def tools_prompt(self, tools: Sequence[SpecLike]) -> str:
        """A section for the system prompt, for chat templates that know no tools."""
        ...


class HermesDialect:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen2.5, Qwen3 and many more."""

    name = "hermes"
    _call = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)

    def parse(self, text: str) -> Message:
        """The text around calls is the content; an unclosed call counts as malformed."""
        calls = tuple(
            self._read(match[1], closed=match[0].endswith("</tool_call>")) for match in self._call.finditer(text)
        )
        content = self._call.sub("", text) if calls else text
        return Message("assistant", content if content.strip() or not calls else None, tool_calls=calls)

    def _read(self, body: str, *, closed: bool) -> ToolCall:
        try:
            value = json.loads(body) if closed else None
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            found = re.search(r'"name"\s*:\s*"([^"\\]*)"', body)
            return ToolCall(found[1] if found else "", body.strip() or "(empty)")
        return ToolCall(value["name"], decode_arguments(value.get("arguments", value.get("parameters", {}))))

    def render_call(self, call: ToolCall) -> str:
        """One call on one line."""
        name = json.dumps(call.name, ensure_ascii=False)
        return f'<tool_call>{{"name": {name}, "arguments": {call.arguments_json()}}}</tool_call>'

    def render_result(self, text: str) -> str:
        """A result between tags, as Hermes models were trained on."""
        return f"<tool_response>\n{text}\n</tool_response>"

    def tools_prompt(self, tools: Sequence[SpecLike]) -> str:
        """Signatures, not JSON schemas: a small model that never saw a tool follows them far better."""
        lines = "\n".join(f"{spec.signature()}: {' '.join(spec.description.split())}" for spec in tools)
        form = '<tool_call>{"name": <tool name>, "arguments": {<name>: <value>}}</tool_call>'
        return f"Tools:\n{lines}\nCall a tool like this: {form}"


_DIALECTS: dict[str, type[Dialect]] = {"hermes": HermesDialect}


def get_dialect(name: str) -> Dialect:
    """The dialect of this name.

    Raises:
        ConfigError: there is none; the message lists those that there are.
    """
    if name not in _DIALECTS:
        raise ConfigError(f"unknown dialect {name!r}; known: {', '.join(_DIALECTS)}")
    return _DIALECTS[name]()
