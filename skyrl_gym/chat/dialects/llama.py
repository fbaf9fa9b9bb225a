"""Llama 3.x: the whole answer is one JSON object, or several between semicolons."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from skyrl_gym.chat.dialects.base import TextDialect, call_of_json
from skyrl_gym.messages import ToolCall
from skyrl_gym.tools import ToolSpec

__all__ = ["LlamaDialect"]


class LlamaDialect(TextDialect):
    """`{"name": ..., "parameters": {...}}`, at the very start of an answer or after `<|python_tag|>`."""

    name = "llama"
    ends = ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")
    form = '{"name": <tool name>, "parameters": {<name>: <value>}}'
    pattern = r'(?:<\|python_tag\|>\s*|(?:\A|(?<=</think>))\s*(?=\{\s*"(?:name|type)"\s*:))(?P<body>.*)'

    def read(self, found: re.Match[str], tools: Sequence[ToolSpec]) -> list[ToolCall]:
        """Every object is a call; what can't be read is one malformed call."""
        calls: list[ToolCall] = []
        rest = found["body"]
        while rest.strip(" ;\n"):
            rest = rest.lstrip(" ;\n")
            try:
                _, end = json.JSONDecoder().raw_decode(rest)
            except (ValueError, RecursionError):
                end = len(rest)
            calls.append(call_of_json(rest[:end]))
            rest = rest[end:]
        return calls or [call_of_json("")]

    def render_call(self, call: ToolCall) -> str:
        """One call on one line."""
        return f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "parameters": {call.arguments_json()}}}'

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """Between semicolons."""
        return "; ".join(map(self.render_call, calls))
