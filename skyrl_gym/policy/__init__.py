"""Who answers: models, servers, scripts and people behind one protocol."""

from __future__ import annotations

from skyrl_gym.errors import ConfigError
from skyrl_gym.policy.base import Completion, FinishReason, Policy, PolicyLoad, Prompt, ReportsLoad, Sampling
from skyrl_gym.policy.cached import CachedPolicy
from skyrl_gym.policy.dialect import in_dialect_of
from skyrl_gym.policy.models import load_renderer, resolve_model
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
    "in_dialect_of",
    "load_renderer",
    "open_policy",
    "resolve_model",
]


def open_policy(
    name: str, *, api_key: str | None = None, dialect: str = "auto", tokenizer: str | None = None
) -> Policy:
    """A policy by name: a model (folder, hub id, `smollm2-135m`) or servers (`http://a/v1,http://b/v1#MODEL`).

    Args:
        name: of the model; or the addresses of its servers, separated by commas, and the name they know it by.
        api_key: for servers.
        dialect: how the model writes tool calls; "auto" looks at its chat template.
        tokenizer: for servers that take token ids (vLLM): folder or hub id of the model's tokenizer. With it
            prompts are made here and completions come back as the exact ids and logprobs that training needs.

    Raises:
        ConfigError, MissingDependency: it can't be had; the message says why.
    """
    if name.startswith(("http://", "https://")):
        addresses, _, model = name.partition("#")
        if not model:
            raise ConfigError(f"name the model behind the server: {name}#MODEL")
        servers = addresses.split(",")
        if tokenizer is not None:
            from skyrl_gym.policy.vllm import VllmPolicy

            return VllmPolicy(servers, model, api_key=api_key, renderer=load_renderer(tokenizer, dialect))
        from skyrl_gym.policy.openai import OpenAIPolicy

        return OpenAIPolicy(servers, model, api_key=api_key, dialect=dialect)
    from skyrl_gym.policy.transformers import TransformersPolicy

    return TransformersPolicy.load(name, dialect=dialect)
