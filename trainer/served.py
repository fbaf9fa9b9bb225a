"""vLLM servers as the sampler: they read the trained weights from a folder each time that they change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from skyrl_gym.background import BackgroundLoop
from skyrl_gym.chat import Renderer
from skyrl_gym.policy import Completion, PolicyLoad, Prompt, Sampling
from skyrl_gym.policy.vllm import VllmPolicy
from skyrl_gym.trainer.weights import write_weights

__all__ = ["ServedPolicy"]

RELOAD_S = 900.0
PATIENCE_S = 600.0


class ServedPolicy:
    """Samples from servers, token in and token out; new weights go by way of the disk.

    A server is started on `folder`, with its endpoints for development: `VLLM_SERVER_DEV_MODE=1 vllm serve
    FOLDER --logprobs-mode processed_logprobs`. On new weights completions stop where they are, on all processes;
    then the servers read them, and completions go on under them, each token with its own version. A server that
    is started again begins with the newest weights, as they lie in its folder. Where none can be reached they are
    waited for, 10 minutes at most.

    Args:
        servers: of the API, with its version: "http://localhost:8000/v1"; several may share the folder.
        folder: a model folder, on a disk that trainer and server share.
        renderer: of the model.
        loop: that completions are asked for on.
        writes: whether this process writes the weights; one does.
        meet: waits for all processes that train.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        folder: Path,
        renderer: Renderer,
        loop: BackgroundLoop,
        *,
        writes: bool = True,
        meet: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = str(folder)
        self.renderer = renderer
        self._folder = folder
        self._loop = loop
        self._writes = writes
        self._meet = meet
        self._inner = VllmPolicy(servers, self.name, renderer=renderer, timeout_s=RELOAD_S, patience_s=PATIENCE_S)

    @property
    def version(self) -> int:
        """Of the weights that the servers hold."""
        return self._inner.version

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """One completion, with the version of the weights that it was sampled from."""
        return await self._inner.complete(prompt, sampling)

    async def current_load(self) -> PolicyLoad:
        """How busy the servers are."""
        return await self._inner.current_load()

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Writes the weights and has the servers read them. Called on all processes together.

        Raises:
            PolicyError: no server can be reached, or one did not take them.
            Refused: a server has no such call: it has to run with VLLM_SERVER_DEV_MODE=1.
        """
        self._write(weights)
        self._loop.run(self._inner.halt())
        try:
            self._meet()  # nothing is under way on any process
            try:
                self._loop.run(self._inner.reload(self._folder, version, tell=self._writes))
            finally:
                self._meet()
        finally:
            self._loop.run(self._inner.go_on())

    def _write(self, weights: Mapping[str, torch.Tensor]) -> None:
        if self._writes:
            write_weights(weights, self._folder)
        else:
            for name in weights:  # putting shards together takes all processes
                _ = weights[name]

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._inner.aclose()
