"""Who answers: models, servers, scripts and people behind one protocol."""

from __future__ import annotations

from skyrl_gym.errors import ConfigError
from skyrl_gym.policy.base import Completion, FinishReason, Policy, PolicyLoad, Prompt, ReportsLoad, Sampling
from skyrl_gym.policy.cached import CachedPolicy
from skyrl_gym.policy.models import resolve_model
from skyrl_gym.policy.scripted import ScriptedPolicy

__all__ = [
    "CachedPolicy",
    "Completion",
    "FinishReason",
    "Policy",
    "PolicyLoad",
    "Prompt",
    "ReportsLoad",
    "Sampling",
    "ScriptedPolicy",
    "open_policy",
    "resolve_model",
]


def open_policy(name: str, *, api_key: str | None = None, dialect: str = "hermes") -> Policy:
    """A policy by name: a model (folder, hub id, `smollm2-135m`) or `http://host:port/v1#model`.

    Raises:
        ConfigError, MissingDependency: it can't be had; the message says why.
    """
    if name.startswith(("http://", "https://")):
        from skyrl_gym.policy.openai import OpenAIPolicy

        address, _, model = name.partition("#")
        if not model:
            raise ConfigError(f"name the model behind the server: {name}#MODEL")
        return OpenAIPolicy(address, model, api_key=api_key, dialect=dialect)
    from skyrl_gym.policy.transformers import TransformersPolicy

    return TransformersPolicy.load(name, dialect=dialect)
