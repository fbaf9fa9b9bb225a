"""Typed tools: a Python function or method becomes something a model can call."""

from skyrl_gym.tools.dispatch import run_calls
from skyrl_gym.tools.result import ContextEdit, ToolResult, cap_text, finish
from skyrl_gym.tools.tool import Effect, Tool, ToolArgumentError, ToolSpec, tool, tools_of

__all__ = [
    "ContextEdit",
    "Effect",
    "Tool",
    "ToolArgumentError",
    "ToolResult",
    "ToolSpec",
    "cap_text",
    "finish",
    "run_calls",
    "tool",
    "tools_of",
]
