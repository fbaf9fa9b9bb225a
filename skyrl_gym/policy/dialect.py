"""Which dialect an environment's prompts and a policy's answers have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skyrl_gym.chat import dialect_names
from skyrl_gym.policy.base import Policy

__all__ = ["in_dialect_of"]


def in_dialect_of(policy: Policy, settings: Mapping[str, Any]) -> dict[str, Any]:
    """An environment's settings, with the dialect that the policy's model writes where they leave it open.

    It is named, not "auto", so that a journal with these settings can be replayed without the model.
    """
    if policy.renderer is None or settings.get("dialect", "auto") != "auto":
        return dict(settings)
    name = policy.renderer.dialect.name
    return {**settings, "dialect": name if name in dialect_names() else "auto"}
