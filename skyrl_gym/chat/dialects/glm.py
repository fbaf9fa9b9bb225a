"""GLM-4.5 and later: keys and values as tags of their own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from skyrl_gym.chat.dialects.base import TextDialect, malformed, typed_value
from skyrl_gym.chat.dialects.qwen_xml import written
from skyrl_gym.messages import ToolCall
from skyrl_gym.tools import ToolSpec

__all__ = ["GlmDialect"]

_PAIR = re.compile(r"\s*<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>", re.DOTALL)


class GlmDialect(TextDialect):
    """`<tool_call>NAME<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>`.

    The model ends a turn by opening the next one: `<|observation|>` after a call, `<|user|>` after an answer.
    """

    name = "glm"
    ends = ("<|observation|>", "<|user|>", "<|endoftext|>")
    form = "<tool_call>TOOL NAME\n<arg_key>NAME</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>"
    pattern = r"<tool_call>(?P<body>.*?)(?P<close></tool_call>|\Z)"

    def read(self, found: re.Match[str], tools: Sequence[ToolSpec]) -> list[ToolCall]:
        """One call a block; values have the types of the tool's schema."""
        body = found["body"]
        head, mark, rest = body.partition("<arg_key>")
        name = head.strip()
        pairs = mark + rest
        arguments: dict[str, Any] = {}
        at = 0
        while pair := _PAIR.match(pairs, at):
            key = pair["key"].strip()
            arguments[key] = typed_value(pair["value"], name, key, tools)
            at = pair.end()
        if not found["close"] or not re.fullmatch(r"[^\s<>{}]+", name) or pairs[at:].strip():
            return [malformed(name if re.fullmatch(r"[^\s<>{}]+", name) else "", body)]
        return [ToolCall(name, arguments)]

    def render_call(self, call: ToolCall) -> str:
        """One tag a line."""
        if isinstance(call.arguments, str):
            return f"<tool_call>{call.name}\n{call.arguments}\n</tool_call>"
        pairs = [
            f"<arg_key>{key}</arg_key>\n<arg_value>{written(value)}</arg_value>"
            for key, value in call.arguments.items()
        ]
        return "\n".join([f"<tool_call>{call.name}", *pairs, "</tool_call>"])
