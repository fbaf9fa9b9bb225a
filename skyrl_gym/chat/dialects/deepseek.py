"""DeepSeek V3, R1 and V3.1: calls between tokens with full-width bars."""

from __future__ import annotations

import re
from collections.abc import Sequence

from skyrl_gym.chat.dialects.base import TextDialect, malformed
from skyrl_gym.messages import ToolCall, decode_arguments
from skyrl_gym.tools import ToolSpec

__all__ = ["DeepSeekDialect"]

_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_ONE = re.compile(r"\s*<｜tool▁call▁begin｜>(?P<body>.*?)<｜tool▁call▁end｜>", re.DOTALL)
_V3 = re.compile(r"function<｜tool▁sep｜>(?P<name>[^\n]+)\n```json\n(?P<arguments>.*)\n```", re.DOTALL)
_V31 = re.compile(r"(?P<name>[^\n<]+)<｜tool▁sep｜>(?P<arguments>.*)", re.DOTALL)


class DeepSeekDialect(TextDialect):
    """`function<sep>NAME` and a fenced JSON block (V3, R1), or `NAME<sep>JSON` (V3.1)."""

    name = "deepseek"
    ends = ("<｜end▁of▁sentence｜>",)
    form = (
        f"{_BEGIN}<｜tool▁call▁begin｜>function<｜tool▁sep｜>TOOL NAME\n```json\n{{...}}\n```<｜tool▁call▁end｜>{_END}"
    )
    pattern = rf"{_BEGIN}(?P<body>.*?)(?P<close>{_END}|\Z)"

    def read(self, found: re.Match[str], tools: Sequence[ToolSpec]) -> list[ToolCall]:
        """All calls of a block; what stands between them is one malformed call."""
        calls: list[ToolCall] = []
        body, at = found["body"], 0
        while one := _ONE.match(body, at):
            calls.append(_read_one(one["body"]))
            at = one.end()
        if body[at:].strip() or not calls:
            calls.append(malformed("", body[at:]))
        return calls

    def render_call(self, call: ToolCall) -> str:
        """A block of one."""
        return self.render_calls([call])

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        """One block."""
        bodies = [
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{call.name}\n```json\n{call.arguments_json()}\n```<｜tool▁call▁end｜>"
            for call in calls
        ]
        return f"{_BEGIN}{chr(10).join(bodies)}{_END}" if calls else ""


def _read_one(body: str) -> ToolCall:
    found = _V3.fullmatch(body.strip()) or _V31.fullmatch(body.strip())
    if found is None:
        return malformed("", body)
    return ToolCall(found["name"].strip(), decode_arguments(found["arguments"].strip()))
