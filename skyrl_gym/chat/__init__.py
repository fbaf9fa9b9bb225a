"""Tokens <-> messages: how a model family writes calls, and how its template renders a conversation."""

from skyrl_gym.chat.dialects import Dialect, HermesDialect, detect_dialect, dialect_names, get_dialect
from skyrl_gym.chat.renderer import Renderer
from skyrl_gym.chat.tracker import PromptStep, TokenTracker

__all__ = [
    "Dialect",
    "HermesDialect",
    "PromptStep",
    "Renderer",
    "TokenTracker",
    "detect_dialect",
    "dialect_names",
    "get_dialect",
]
