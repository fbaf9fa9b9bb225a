"""vLLM servers whose weights change while they answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from skyrl_gym.policy.openai import OpenAIPolicy

__all__ = ["VllmPolicy"]


class VllmPolicy(OpenAIPolicy):
    """Token in, token out, with new weights in flight.

    The servers run with `VLLM_SERVER_DEV_MODE=1` and `--logprobs-mode processed_logprobs`; adapters also need
    `--enable-lora` and `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1`. While weights are loaded, completions stop where
    they are; afterwards they go on from their ids under the new weights, and `token_versions` tells which ids
    are whose. Folders are read by the servers: they must see the same file system.
    """

    async def load_weights(self, folder: Path, version: int) -> None:
        """All servers load the model in `folder` (safetensors); what is sampled from then on has this version.

        Raises:
            PolicyError: a server can't be reached or fails; the version stays as it was.
            Refused: a server has no such call, or can't load such weights.
        """
        async with self._stopped():
            body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
            await self._servers.post_to_all("/collective_rpc", body)
            await self._servers.post_to_all("/reset_prefix_cache")
            self.version = version

    async def load_adapter(self, folder: Path, version: int, *, name: str = "policy") -> None:
        """All servers load the LoRA adapter in `folder` under `name`, in place of one that has it; later
        completions are the adapter's.

        Raises:
            PolicyError, Refused: as in `load_weights`.
        """
        async with self._stopped():
            body = {"lora_name": name, "lora_path": str(folder), "load_inplace": self._served_as == name}
            await self._servers.post_to_all("/v1/load_lora_adapter", body)
            await self._servers.post_to_all("/reset_prefix_cache")
            self._served_as, self.version = name, version

    @asynccontextmanager
    async def _stopped(self) -> AsyncIterator[None]:
        """No request of ours is on a server, and none is sent."""
        self._may_ask.clear()
        try:
            await self._servers.post_to_all("/pause?mode=abort")
            while self._servers.in_flight:  # one may have come in behind the pause, and would wait for its end
                await self._servers.post_to_all("/abort_requests", {"abort_all": True})
                await asyncio.sleep(0.02)
            yield
        finally:
            try:
                await self._servers.post_to_all("/resume")
            finally:
                self._may_ask.set()  # also where a server died: its requests fail and are tried elsewhere
