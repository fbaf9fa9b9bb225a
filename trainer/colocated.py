"""vLLM on the GPUs that train: a server for each process, which sleeps while the process trains."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from skyrl_gym.background import BackgroundLoop
from skyrl_gym.chat import Renderer
from skyrl_gym.policy.serving import served
from skyrl_gym.trainer.models import save_model
from skyrl_gym.trainer.recipe import Recipe
from skyrl_gym.trainer.served import ServedPolicy
from skyrl_gym.trainer.weights import plain_weights

__all__ = ["ColocatedPolicy", "colocated", "server_environment"]

# What launchers tell their processes: a server that read it would wait for the others of a group it is not in.
_LAUNCHED = frozenset(
    {
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK",
        "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS",
    }
)  # fmt: skip
_LAUNCHERS = ("TORCHELASTIC_", "ACCELERATE_", "FSDP_", "PET_", "TORCH_NCCL_")
# Of the trainer's allocator; vLLM's own, by which memory is given away for a while, takes no expandable segments.
_ALLOCATOR = frozenset({"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"})


class ColocatedPolicy(ServedPolicy):
    """Samples from a server on this process's own GPU, token in and token out; weights go by way of the disk.

    While the process trains the server sleeps, if it may: it keeps neither weights nor KV cache. On new weights the
    trainer gives its free memory back, and the server takes memory for weights, reads them, and takes memory for
    its KV cache. Every process tells its own server; one of them writes the weights.

    Args:
        sleeps: the server was started with `--enable-sleep-mode`.
        servers, folder, renderer, loop, writes, meet: as of `ServedPolicy`.
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
        sleeps: bool,
    ) -> None:
        super().__init__(servers, folder, renderer, loop, writes=writes, meet=meet)
        self._sleeps = sleeps
        self._asleep = False

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Writes the weights, wakes the server and has it read them. Called on all processes together.

        Raises:
            PolicyError: the server is gone, has no memory to wake up in, or did not take the weights.
        """
        self._write(weights)
        self._meet()  # they are there for every process
        if self._asleep:
            torch.cuda.empty_cache()
            self._loop.run(self._inner.wake("weights"))
        else:
            self._loop.run(self._inner.halt())
        try:
            self._loop.run(self._inner.reload(self._folder, version))
            if self._asleep:
                self._loop.run(self._inner.wake("kv_cache"))
        finally:
            self._loop.run(self._inner.go_on())
        self._asleep = False

    def rest(self) -> None:
        """Training has the GPU until the next weights.

        Raises:
            PolicyError: the server is gone.
        """
        if self._sleeps and not self._asleep:
            self._loop.run(self._inner.sleep())
            self._asleep = True


@contextmanager
def colocated(
    recipe: Recipe,
    model: Any,
    tokenizer: Any,
    folder: Path,
    loop: BackgroundLoop,
    *,
    writes: bool,
    meet: Callable[[], None],
    say: Callable[[str], None],
) -> Iterator[ColocatedPolicy]:
    """A server of this process's own, on a copy of the model in `folder`, which all processes see.

    The server ends with the block or with the process, and the block with the server; the folder is removed.

    Raises:
        MissingDependency: vLLM is not there.
        PolicyError: the server did not start, or ended before the block.
    """
    sleeps = recipe.rollout.vllm_enable_sleep_mode
    if writes:
        save_model(model, plain_weights(model), tokenizer, folder)
    meet()
    try:
        with served(_words(recipe, folder), say, server_environment(os.environ, torch.cuda.is_available())) as address:
            url, renderer = address.partition("#")[0], Renderer(tokenizer, recipe.dialect)
            policy = ColocatedPolicy(url, folder, renderer, loop, writes=writes, meet=meet, sleeps=sleeps)
            policy.name = recipe.model  # in reports; the folder is gone then
            yield policy
    finally:
        if writes:
            shutil.rmtree(folder, ignore_errors=True)


def server_environment(environ: Mapping[str, str], on_gpu: bool) -> dict[str, str]:
    """The environment of a process's server: that of the process without what its launcher said, and its one GPU."""
    kept = {
        name: value
        for name, value in environ.items()
        if name not in _LAUNCHED and name not in _ALLOCATOR and not name.startswith(_LAUNCHERS)
    }
    if on_gpu:
        place = int(environ.get("LOCAL_RANK", "0"))
        visible = environ.get("CUDA_VISIBLE_DEVICES")
        kept["CUDA_VISIBLE_DEVICES"] = visible.split(",")[place].strip() if visible else str(place)
    return kept | {"VLLM_SERVER_DEV_MODE": "1"}


def _words(recipe: Recipe, folder: Path) -> str:
    """The model and the options of its server."""
    rollout = recipe.rollout
    words = [str(folder), "--dtype", "bfloat16", "--logprobs-mode", "processed_logprobs"]
    words += ["--gpu-memory-utilization", f"{rollout.vllm_gpu_memory_utilization:g}"]
    if rollout.max_context is not None:
        words += ["--max-model-len", str(rollout.max_context)]
    if rollout.vllm_enable_sleep_mode:
        words.append("--enable-sleep-mode")
    return shlex.join(words)
