"""vLLM servers whose weights change while they answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

from skyrl_gym.errors import PolicyError
from skyrl_gym.policy.openai import OpenAIPolicy
from skyrl_gym.policy.servers import Call, Refused

__all__ = ["VllmPolicy"]

PAUSE: Call = ("/pause?mode=abort", {})
RESUME: Call = ("/resume", {})
ABORT: Call = ("/abort_requests", {"abort_all": True})
FORGET: Call = ("/reset_prefix_cache", {})
SLEEP: Call = ("/sleep?level=2", {})  # 1 would keep the weights in the memory of the machine


class VllmPolicy(OpenAIPolicy):
    """Token in, token out, with new weights in flight.

    The servers run with `VLLM_SERVER_DEV_MODE=1` and `--logprobs-mode processed_logprobs`; adapters also need
    `--enable-lora` and `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1`. While weights are loaded, completions stop where
    they are; afterwards they go on from their ids under the new weights, and `token_versions` tells which ids
    are whose. Folders are read by the servers: they must see the same file system.

    A server that can't be reached while weights are loaded is left out, and loads them when it is back, before it
    is asked again.
    """

    _weights: tuple[Call, ...] = ()
    _adapter: tuple[Call, ...] = ()

    async def load_weights(self, folder: Path, version: int) -> None:
        """All servers load the model in `folder` (safetensors); what is sampled from then on has this version.

        Raises:
            PolicyError: no server can be reached, or one fails; the version stays as it was.
            Refused: a server has no such call, or can't load such weights.
        """
        async with self.halted():
            await self.reload(folder, version)

    async def load_adapter(self, folder: Path, version: int, *, name: str = "policy") -> None:
        """All servers load the LoRA adapter in `folder` under `name`, in place of one that has it; later
        completions are the adapter's.

        Raises:
            PolicyError, Refused: as in `load_weights`.
        """
        body = {"lora_name": name, "lora_path": str(folder), "load_inplace": True}
        adapter: tuple[Call, ...] = (("/v1/load_lora_adapter", body),)
        async with self.halted():
            await self._servers.tell(*adapter, FORGET)
            self._adapter, self._served_as = adapter, name
            self._loaded(version)

    async def unload_adapter(self, version: int) -> None:
        """All servers drop the adapter; later completions are the plain model's.

        Raises:
            PolicyError, Refused: as in `load_weights`.
        """
        async with self.halted():
            await self._servers.tell(("/v1/unload_lora_adapter", {"lora_name": self._served_as}), FORGET)
            self._adapter, self._served_as = (), self.name
            self._loaded(version)

    @asynccontextmanager
    async def halted(self) -> AsyncIterator[None]:
        """No request of this policy is on a server, and none is sent, until the block ends."""
        await self.halt()
        try:
            yield
        finally:
            await self.go_on()

    async def halt(self) -> None:
        """Stops completions where they are. Ended by `go_on`.

        Raises:
            PolicyError: no server can be reached.
            Refused: a server has no such call.
        """
        self._servers.hold()
        self._servers.greeting = (*self._weights, *self._adapter, RESUME)
        try:
            await self._servers.tell(PAUSE)
            while self._servers.in_flight:  # one may have come in behind the pause, and would wait for its end
                await self._servers.tell(ABORT)
                await asyncio.sleep(0.02)
        except Refused as refusal:
            self._servers.release()
            raise Refused(f"{refusal}; it has to run with VLLM_SERVER_DEV_MODE=1", refusal.status) from None
        except BaseException:
            await self.go_on()
            raise

    async def go_on(self) -> None:
        """Lets completions go on."""
        try:
            await self._servers.tell(RESUME)
        except PolicyError:
            pass  # whoever comes back is told then
        finally:
            self._servers.release()

    async def sleep(self) -> None:
        """Halts, and has all servers give the memory of weights and KV cache back. They run with
        `--enable-sleep-mode`. Ended by `wake("weights")`, `reload`, `wake("kv_cache")` and `go_on`, in this order.

        Raises:
            PolicyError, Refused: as in `halt`.
        """
        await self.halt()
        await self._servers.tell(SLEEP)

    async def wake(self, what: Literal["weights", "kv_cache"]) -> None:
        """All servers take memory again; weights are to be loaded then, for there is nothing in it.

        Raises:
            PolicyError: no server can be reached, or one has no such memory left.
        """
        await self._servers.tell((f"/wake_up?tags={what}", {}))

    async def reload(self, folder: Path, version: int, *, tell: bool = True) -> None:
        """Within `halted`: the servers load the model in `folder`.

        Args:
            tell: them to; several processes that use the same servers halt together, and one of them tells.

        Raises:
            PolicyError, Refused: as in `load_weights`.
        """
        weights: tuple[Call, ...] = (
            ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}),
            FORGET,
        )
        if tell:
            await self._servers.tell(*weights)
        self._weights = weights
        self._loaded(version)

    def _loaded(self, version: int) -> None:
        self._servers.greeting = (*self._weights, *self._adapter, RESUME)
        self.version = version
