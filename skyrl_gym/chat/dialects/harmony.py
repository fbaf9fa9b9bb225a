"""Harmony, gpt-oss' format: an answer is several messages, each on a channel."""

from __future__ import annotations

import re
from collections.abc import Sequence

from skyrl_gym.chat.dialects.base import TextDialect
from skyrl_gym.messages import Message, ToolCall, decode_arguments
from skyrl_gym.tools import ToolSpec

__all__ = ["HarmonyDialect"]

_PART = re.compile(
    r"(?:<\|start\|>assistant)?(?P<head>[^<]*(?:<\|channel\|>[^<]*)?(?:<\|constrain\|>[^<]*)?)<\|message\|>"
    r"(?P<body>.*?)(?P<close><\|end\|>|<\|call\|>|<\|return\|>|(?=<\|start\|>assistant)|\Z)",
    re.DOTALL,
)
_RECIPIENT = re.compile(r"to=(?:functions\.)?([\w.-]+)")


class HarmonyDialect(TextDialect):
    """`analysis` is thought, `final` is content, and a message `to=functions.NAME` is a call.

    Commentary for the user (a preamble before calls) is content. Text outside any message is content too.
    """

    name = "harmony"
    ends = ("<|return|>", "<|call|>")
    form = "<|channel|>commentary to=functions.TOOL <|constrain|>json<|message|>{...}<|call|>"
    pattern = r"(?!)"

    def parse(self, text: str, tools: Sequence[ToolSpec] = ()) -> Message:
        """Every message of the answer by its channel."""
        thoughts: list[str] = []
        kept: list[str] = []
        calls: list[ToolCall] = []
        at = 0
        for part in _PART.finditer(text):
            kept.append(text[at : part.start()])
            at = part.end()
            if recipient := _RECIPIENT.search(part["head"]):
                calls.append(ToolCall(recipient[1], decode_arguments(part["body"].strip() or "(empty)")))
            elif "analysis" in part["head"]:
                thoughts.append(part["body"])
            else:
                kept.append(part["body"])
        content = "".join([*kept, text[at:]])
        return Message(
            "assistant",
            content if content.strip() or not calls else None,
            tool_calls=tuple(calls),
            reasoning="".join(thoughts) if thoughts else None,
        )

    def read(self, found: re.Match[str], tools: Sequence[ToolSpec]) -> list[ToolCall]:
        """Never asked: `parse` reads the channels."""
        return []

    def render(self, message: Message) -> str:
        """The messages after the `<|start|>assistant` that the prompt ends with."""
        parts = []
        if message.reasoning is not None:
            parts.append(f"<|channel|>analysis<|message|>{message.reasoning}<|end|>")
        if message.text or not message.tool_calls:
            channel = "commentary" if message.tool_calls else "final"
            closing = "<|end|>" if message.tool_calls else ""
            parts.append(f"<|channel|>{channel}<|message|>{message.text}{closing}")
        parts += [self.render_call(call) for call in message.tool_calls]
        return "<|start|>assistant".join(parts)

    def render_call(self, call: ToolCall) -> str:
        """On the commentary channel; its `<|call|>` ends the turn and is left out."""
        return f" to=functions.{call.name}<|channel|>commentary json<|message|>{call.arguments_json()}"
