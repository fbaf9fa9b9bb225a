"""Gymnasium environments for LLM agents, a rollout runner, a multi-turn GRPO trainer and an evaluator.

Importing the package registers its environments and loads nothing heavy; names are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from skyrl_gym.registration import register_builtin, register_file

if TYPE_CHECKING:
    from skyrl_gym.env import Grade, TextEnv
    from skyrl_gym.errors import StopReason
    from skyrl_gym.messages import Message, ToolCall, assistant, system, user
    from skyrl_gym.probes import Probe
    from skyrl_gym.spaces import ConversationSpace, ToolSpace
    from skyrl_gym.tasks import Task, TaskSet
    from skyrl_gym.tools import ContextEdit, ToolResult, finish, tool

__all__ = [
    "ContextEdit",
    "ConversationSpace",
    "Grade",
    "Message",
    "Probe",
    "StopReason",
    "Task",
    "TaskSet",
    "TextEnv",
    "ToolCall",
    "ToolResult",
    "ToolSpace",
    "assistant",
    "finish",
    "register_file",
    "system",
    "tool",
    "user",
]

_HOMES = {
    "env": ("Grade", "TextEnv"),
    "errors": ("StopReason",),
    "messages": ("Message", "ToolCall", "assistant", "system", "user"),
    "probes": ("Probe",),
    "spaces": ("ConversationSpace", "ToolSpace"),
    "tasks": ("Task", "TaskSet"),
    "tools": ("ContextEdit", "ToolResult", "finish", "tool"),
}

register_builtin()


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"skyrl_gym.{module}"), name)
    raise AttributeError(f"module 'skyrl_gym' has no attribute {name!r}")
