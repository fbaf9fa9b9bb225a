"""A tokenizer that brings a `response_template`: transformers parses its answers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from skyrl_gym.chat.dialects.base import malformed
from skyrl_gym.chat.dialects.hermes import HermesDialect
from skyrl_gym.messages import Message, ToolCall, decode_arguments
from skyrl_gym.tools import ToolSpec

__all__ = ["ResponseTemplateDialect"]


class ResponseTemplateDialect(HermesDialect):
    """For families that no dialect here knows: reads as the tokenizer says, writes calls as Hermes does."""

    name = "response_template"

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def parse(self, text: str, tools: Sequence[ToolSpec] = ()) -> Message:
        """What transformers makes of the text; where it fails, a malformed call in the text's place."""
        try:
            data = self._tokenizer.parse_response(text, prefix="", tools=[spec.to_openai() for spec in tools] or None)
            return _message(data)
        except Exception as error:  # noqa: BLE001 - a template is code of its own, and may raise anything
            return Message("assistant", None, tool_calls=(malformed("", f"{text} ({error})"),))

    def read(self, found: re.Match[str], tools: Sequence[ToolSpec]) -> list[ToolCall]:
        """Never asked: `parse` hands over to transformers."""
        return []


def _message(data: Any) -> Message:
    calls = [call.get("function", call) for call in data.get("tool_calls") or ()]
    return Message(
        "assistant",
        data.get("content"),
        tool_calls=tuple(ToolCall(str(call.get("name") or ""), _arguments(call)) for call in calls),
        reasoning=data.get("reasoning_content") or data.get("thinking"),
    )


def _arguments(call: Any) -> Any:
    arguments = call.get("arguments", {})
    return decode_arguments(arguments if isinstance(arguments, str | dict) else json.dumps(arguments))
