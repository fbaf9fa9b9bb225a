"""A vLLM server as the sampler: it reads the trained weights from a folder each time that they change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import torch

from skyrl_gym.chat import Renderer
from skyrl_gym.errors import PolicyError
from skyrl_gym.policy import Completion, Prompt, Sampling
from skyrl_gym.policy.openai import OpenAIPolicy
from skyrl_gym.trainer.weights import write_weights

__all__ = ["ServedPolicy"]

RELOAD_S = 900.0


class ServedPolicy:
    """Samples from a server, token in and token out; new weights go by way of the disk.

    The server is started on `folder`, with its endpoints for development: `VLLM_SERVER_DEV_MODE=1 vllm serve
    FOLDER --logprobs-mode processed_logprobs`. On new weights they are written there, the server is told to read
    them (`collective_rpc reload_weights`) and to forget its prefix cache.

    Args:
        servers: of the API, with its version: "http://localhost:8000/v1"; several may share the folder.
        folder: a model folder, on a disk that trainer and server share.
        renderer: of the model.
        writes: whether this process writes the weights; one does.
    """

    def __init__(self, servers: str | Sequence[str], folder: Path, renderer: Renderer, *, writes: bool = True) -> None:
        self.name = str(folder)
        self.renderer = renderer
        addresses = [servers] if isinstance(servers, str) else servers
        self._roots = [address.rstrip("/").removesuffix("/v1") for address in addresses]
        self._folder = folder
        self._writes = writes
        self._inner = OpenAIPolicy(servers, self.name, renderer=renderer, timeout_s=RELOAD_S)

    @property
    def version(self) -> int:
        """Of the weights that the servers hold."""
        return self._inner.version

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """One completion, with the version of the weights that it was sampled from."""
        return await self._inner.complete(prompt, sampling)

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Writes the weights and has the servers read them.

        Raises:
            PolicyError: the server did not take them.
        """
        if self._writes:
            write_weights(weights, self._folder)
            for root in self._roots:
                _tell(root + "/collective_rpc", {"method": "reload_weights"})
                _tell(root + "/reset_prefix_cache", {})
        else:
            for name in weights:  # putting shards together takes all processes
                _ = weights[name]
        self._inner.version = version

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._inner.aclose()


def _tell(address: str, body: Mapping[str, Any]) -> None:
    try:
        answer = httpx.post(address, json=body, timeout=RELOAD_S)
    except httpx.HTTPError as error:
        raise PolicyError(f"{address}: {type(error).__name__}: {error}") from error
    if answer.is_error:
        raise PolicyError(
            f"{address}: the server answered {answer.status_code}: {answer.text[:200]}; it has to run with "
            "VLLM_SERVER_DEV_MODE=1"
        )
