"""Qwen3-Coder, Qwen3.5, Nemotron 3: functions and parameters as tags, values without quotes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from skyrl_gym.chat.dialects.base import TextDialect, malformed, typed_value
from skyrl_gym.messages import ToolCall
from skyrl_gym.tools import ToolSpec

__all__ = ["FunctionTagsDialect", "QwenXmlDialect"]

_PARAMETER = re.compile(r"\s*<parameter=(?P<name>[^>\n]+)>(?P<value>.*?)</parameter>", re.DOTALL)


class FunctionTagsDialect(TextDialect):
    """`<function=NAME><parameter=KEY>value</parameter></function>`, as OpenHands writes it for any model."""

    name = "openhands"
    form = "<function=TOOL NAME>\n<parameter=NAME>VALUE</parameter>\n</function>"
    pattern = r"<function=(?P<name>[^>\n]*)>(?P<body>.*?)(?P<close></function>|\Z)"

    def read(self, found: re.Match[str], tools: Sequence[ToolSpec]) -> list[ToolCall]:
        """One call a block; values have the types of the tool's schema."""
        name, body = found["name"].strip(), found["body"]
        arguments: dict[str, Any] = {}
        at = 0
        while part := _PARAMETER.match(body, at):
            value = part["value"].removeprefix("\n").removesuffix("\n")
            arguments[part["name"].strip()] = typed_value(value, name, part["name"].strip(), tools)
            at = part.end()
        if not found["close"] or not name or body[at:].strip():
            return [malformed(name, body)]
        return [ToolCall(name, arguments)]

    def render_call(self, call: ToolCall) -> str:
        """One parameter a line."""
        if isinstance(call.arguments, str):
            return f"<function={call.name}>\n{call.arguments}\n</function>"
        parts = [f"<parameter={key}>\n{written(value)}\n</parameter>" for key, value in call.arguments.items()]
        return "\n".join([f"<function={call.name}>", *parts, "</function>"])


class QwenXmlDialect(FunctionTagsDialect):
    """The same between `<tool_call>` tags; the outer tags may be missing, as in the models' own parsers."""

    name = "qwen_xml"
    form = f"<tool_call>\n{FunctionTagsDialect.form}\n</tool_call>"
    pattern = rf"(?:<tool_call>\s*)?{FunctionTagsDialect.pattern}(?:\s*</tool_call>)?|(?P<stray><tool_call>)"

    def read(self, found: re.Match[str], tools: Sequence[ToolSpec]) -> list[ToolCall]:
        """One call a block; an opening tag without a function is a malformed call."""
        return [malformed("", found["stray"])] if found["stray"] else super().read(found, tools)

    def render_call(self, call: ToolCall) -> str:
        """A function between the outer tags."""
        return f"<tool_call>\n{super().render_call(call)}\n</tool_call>"


def written(value: Any) -> str:
    """A value without quotes: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
