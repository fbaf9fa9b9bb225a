"""Mistral: `[TOOL_CALLS]`, then a JSON list (to 2024), or a name and `[ARGS]` for each call (since)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from skyrl_gym.chat.dialects.base import TextDialect, call_of_json, malformed
from skyrl_gym.messages import ToolCall, decode_arguments
from skyrl_gym.tools import ToolSpec

__all__ = ["MistralDialect"]

_NAMED = re.compile(r"\s*(?P<name>[\w.-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?(?P<arguments>\{.*)", re.DOTALL)


class MistralDialect(TextDialect):
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}]` or `[TOOL_CALLS]NAME[ARGS]{...}`."""

    name = "mistral"
    ends = ("</s>",)
    form = '[TOOL_CALLS][{"name": <tool name>, "arguments": {<name>: <value>}}]'
    pattern = r"\[TOOL_CALLS\](?P<body>.*?)(?=\[TOOL_CALLS\]|\Z)"

    def read(self, found: re.Match[str], tools: Sequence[ToolSpec]) -> list[ToolCall]:
        """All calls of a list, or the one that is named."""
        body = found["body"]
        if named := _NAMED.fullmatch(body):
            arguments = decode_arguments(named["arguments"].strip())
            return [ToolCall(named["name"], arguments)]
        try:
            values = json.loads(body)
        except (ValueError, RecursionError):
            return [call_of_json(body, closed=False)]
        if not isinstance(values, list) or not values:
            return [malformed("", body)]
        return [call_of_json(json.dumps(value, ensure_ascii=False)) for value in values]

    def render_call(self, call: ToolCall) -> str:
        """A list of one."""
        return self.render_calls([call])

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """One list."""
        bodies = [
            f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {call.arguments_json()}}}'
            for call in calls
        ]
        return f"[TOOL_CALLS][{', '.join(bodies)}]" if calls else ""
