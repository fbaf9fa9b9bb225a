"""Hermes: a JSON object between tags. Also Qwen2.5, Qwen3, SmolLM3 and many more."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from skyrl_gym.chat.dialects.base import TextDialect, call_of_json
from skyrl_gym.messages import ToolCall
from skyrl_gym.tools import ToolSpec

__all__ = ["HermesDialect"]


class HermesDialect(TextDialect):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`; an unclosed call counts as malformed."""

    name = "hermes"
    form = '<tool_call>{"name": <tool name>, "arguments": {<name>: <value>}}</tool_call>'
    pattern = r"<tool_call>(?P<body>.*?)(?P<close></tool_call>|\Z)"

    def read(self, found: re.Match[str], tools: Sequence[ToolSpec]) -> list[ToolCall]:
        """One call a block."""
        return [call_of_json(found["body"], closed=bool(found["close"]))]

    def render_call(self, call: ToolCall) -> str:
        """One call on one line."""
        name = json.dumps(call.name, ensure_ascii=False)
        return f'<tool_call>{{"name": {name}, "arguments": {call.arguments_json()}}}</tool_call>'
