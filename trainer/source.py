"""Where the trainer gets its trajectories from, and how the policy gets the trainer's weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import torch

from skyrl_gym.background import BackgroundLoop
from skyrl_gym.policy.transformers import TransformersPolicy
from skyrl_gym.rollout import RolloutRequest, Runner, Trajectory

__all__ = ["RolloutSource", "RunnerSource", "sampling_weights"]


class RolloutSource(Protocol):
    """Makes trajectories under given weights."""

    def sync(self, model: Any, version: int) -> None:
        """From now on, sample from this model's weights."""
        ...

    def collect(self, requests: Sequence[RolloutRequest]) -> list[Trajectory]:
        """One trajectory for each request, in the order of the requests."""
        ...


class RunnerSource:
    """Rolls out in this process; the policy holds a copy of the weights in its own precision."""

    def __init__(self, runner: Runner, policy: TransformersPolicy, loop: BackgroundLoop) -> None:
        self._runner = runner
        self._policy = policy
        self._loop = loop

    def sync(self, model: Any, version: int) -> None:
        """Copies the weights over."""
        self._policy.load_weights(sampling_weights(model), version)

    def collect(self, requests: Sequence[RolloutRequest]) -> list[Trajectory]:
        """Runs them all."""
        return self._loop.run(self._collect(requests))

    async def _collect(self, requests: Sequence[RolloutRequest]) -> list[Trajectory]:
        async with aclosing(self._runner.run(requests)) as finished:
            by_key = {trajectory.key: trajectory async for trajectory in finished}
        return [by_key[request.key] for request in requests]


def sampling_weights(model: Any) -> Mapping[str, torch.Tensor]:
    """A model's weights under the names of the plain model, LoRA adapters merged in."""
    if not hasattr(model, "merge_adapter"):
        weights: Mapping[str, torch.Tensor] = model.state_dict()
        return weights
    model.merge_adapter()
    try:
        merged = model.get_base_model().state_dict()
        return {n.replace(".base_layer", ""): w.clone() for n, w in merged.items() if "lora_" not in n}
    finally:
        model.unmerge_adapter()
