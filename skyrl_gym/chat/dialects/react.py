"""For models without a tool template: ReAct's lines and CodeAct's code blocks."""

from __future__ import annotations

import re
from collections.abc import Sequence

from skyrl_gym.chat.dialects.base import TextDialect, malformed, typed_value
from skyrl_gym.chat.dialects.qwen_xml import written
from skyrl_gym.messages import ToolCall, decode_arguments
from skyrl_gym.tools import ToolSpec

__all__ = ["CodeActDialect", "ReActDialect"]


class ReActDialect(TextDialect):
    """`Action: NAME` and `Action Input: {...}`; an observation that the model makes up itself is cut off."""

    name = "react"
    form = 'Action: <tool name>\nAction Input: {"<name>": <value>}'
    pattern = (
        r"(?:\A|(?<=\n))Action:[ \t]*(?P<name>[^\n]*)"
        r"(?:\n+Action Input:[ \t]*(?P<body>.*?)(?=\nAction:|\nObservation:|\Z))?(?:\nObservation:.*)?"
    )

    def read(self, found: re.Match[str], tools: Sequence[ToolSpec]) -> list[ToolCall]:
        """One action; without an input it is malformed."""
        name, body = found["name"].strip(), found["body"]
        if body is None or not name:
            return [malformed(name, body or "")]
        return [ToolCall(name, decode_arguments(body.strip() or "(empty)"))]

    def render_call(self, call: ToolCall) -> str:
        """Two lines."""
        return f"Action: {call.name}\nAction Input: {call.arguments_json()}"

    def render_result(self, text: str) -> str:
        """What came of the action."""
        return f"Observation: {text}"


class CodeActDialect(TextDialect):
    """A fenced block is a call: its language is the tool, its text the tool's first required argument.

    Blocks in languages that are no tool's name are shown code and stay in the content.
    """

    name = "codeact"
    form = "```TOOL NAME\nTHE TOOL'S ARGUMENT\n```"
    pattern = r"(?:\A|(?<=\n))```(?P<name>\w+)\n(?P<body>.*?)(?P<close>\n```(?=\n|\Z)|\Z)"

    def read(self, found: re.Match[str], tools: Sequence[ToolSpec]) -> list[ToolCall] | None:
        """One block, one call."""
        name = found["name"]
        spec = next((spec for spec in tools if spec.name == name), None)
        if spec is None:
            return None
        if not found["close"]:
            return [malformed(name, found["body"])]
        names = [*spec.parameters.get("required", ()), *spec.parameters.get("properties", ())]
        return [ToolCall(name, {names[0]: typed_value(found["body"], name, names[0], tools)} if names else {})]

    def render_call(self, call: ToolCall) -> str:
        """The first argument as a block."""
        value = call.arguments if isinstance(call.arguments, str) else next(iter(call.arguments.values()), "")
        return f"```{call.name}\n{written(value)}\n```"
