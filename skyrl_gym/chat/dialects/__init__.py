"""Dialects: how a model family writes tool calls in text. One module a family, one line of `_DIALECTS`.

Parsing never raises: whatever a model writes becomes a message. Two kinds of mistake are told apart. A call whose
structure can't be read (an unclosed tag, broken JSON, no name) becomes a `ToolCall` that is not `well_formed`:
its `arguments` is the raw text. A call that can be read but doesn't fit its tool (an unknown name, a missing or
mistyped argument) is well-formed, and the tool answers with what is wrong.
"""

from __future__ import annotations

from typing import Any

from skyrl_gym.chat.dialects.base import Dialect, TextDialect
from skyrl_gym.chat.dialects.deepseek import DeepSeekDialect
from skyrl_gym.chat.dialects.glm import GlmDialect
from skyrl_gym.chat.dialects.harmony import HarmonyDialect
from skyrl_gym.chat.dialects.hermes import HermesDialect
from skyrl_gym.chat.dialects.llama import LlamaDialect
from skyrl_gym.chat.dialects.mistral import MistralDialect
from skyrl_gym.chat.dialects.qwen_xml import FunctionTagsDialect, QwenXmlDialect
from skyrl_gym.chat.dialects.react import CodeActDialect, ReActDialect
from skyrl_gym.chat.dialects.response_template import ResponseTemplateDialect
from skyrl_gym.errors import ConfigError

__all__ = ["Dialect", "HermesDialect", "TextDialect", "detect_dialect", "dialect_names", "get_dialect"]

_DIALECTS: dict[str, type[TextDialect]] = {
    dialect.name: dialect
    for dialect in (
        HermesDialect,
        QwenXmlDialect,
        LlamaDialect,
        MistralDialect,
        GlmDialect,
        DeepSeekDialect,
        HarmonyDialect,
        FunctionTagsDialect,
        ReActDialect,
        CodeActDialect,
    )
}
# What a chat template holds, all of it, if its family writes calls so; the first that is found counts.
_MARKS = (
    (("<|channel|>",), "harmony"),
    (("<｜tool▁calls▁begin｜>",), "deepseek"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<arg_key>",), "glm"),
    (("<function=",), "qwen_xml"),
    (("<tool_call>",), "hermes"),
    (("<|start_header_id|>", '"parameters": '), "llama"),
)


def dialect_names() -> tuple[str, ...]:
    """All that `get_dialect` knows, "auto" left out."""
    return tuple(_DIALECTS)


def get_dialect(name: str) -> Dialect:
    """The dialect of this name; "auto", where there is no chat template to look at, is Hermes.

    Raises:
        ConfigError: there is none; the message lists those that there are.
    """
    if name == "auto":
        return HermesDialect()
    if name not in _DIALECTS:
        raise ConfigError(f"unknown dialect {name!r}; known: auto, {', '.join(_DIALECTS)}")
    return _DIALECTS[name]()


def detect_dialect(tokenizer: Any) -> Dialect | None:
    """The dialect that a tokenizer's chat template writes; None: none that is known here.

    Where the template shows none, the tokenizer's own `response_template` parses answers.
    """
    template = str(tokenizer.chat_template)
    for marks, name in _MARKS:
        if all(mark in template for mark in marks):
            return _DIALECTS[name]()
    if getattr(tokenizer, "response_template", None):
        return ResponseTemplateDialect(tokenizer)
    return None
