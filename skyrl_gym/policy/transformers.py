"""A Hugging Face model in this process: concurrent requests are batched, ids and logprobs are exact."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

try:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
except ImportError as error:
    from skyrl_gym.errors import MissingDependency

    raise MissingDependency.extra(error.name or "transformers", "train") from None

from skyrl_gym.chat import Renderer
from skyrl_gym.errors import ConfigError, PolicyError
from skyrl_gym.policy.base import Completion, PolicyLoad, Prompt, Sampling
from skyrl_gym.policy.decoding import Batch, Decoder, Row
from skyrl_gym.policy.models import resolve_model

__all__ = ["CACHE_TOKENS", "TransformersPolicy"]

CACHE_TOKENS = 65_536
QUIET_S = 0.008  # a batch starts when nothing has arrived for this long ...
PATIENCE_S = 0.05  # ... and at the latest this long after its first request


class TransformersPolicy:
    """Samples from a causal language model.

    Requests are decoded together in a thread of its own, with a KV cache: they join the running batch and leave
    it when they are done. Rows of very different lengths get batches of their own, so that padding never more
    than doubles the work; equal prompts that arrive together are read once. Of a prompt that begins like an
    earlier sequence, as the next turn of a conversation does, only the rest is read. Logprobs are those of the
    distribution that was sampled from (after temperature, top-k and top-p; at temperature 0, of the plain
    softmax). A seeded row draws from a generator of its own, whatever shares its batch.

    Args:
        model: a causal LM, in eval mode.
        tokenizer: its tokenizer, with a chat template.
        dialect: how it writes tool calls.
        max_batch: most rows decoded at once.
        cache_tokens: room for keys and values. Running rows take what they need; what they leave of it holds
            those of earlier ones for prompts to come, until a weight changes. 0 keeps nothing.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        dialect: str = "auto",
        max_batch: int = 64,
        cache_tokens: int = CACHE_TOKENS,
        name: str = "",
    ) -> None:
        self.model = model
        self.renderer = Renderer(tokenizer, dialect)
        self.name = name or str(getattr(model, "name_or_path", "")) or type(model).__name__
        self.version = 0
        self._max_batch = max_batch
        self._cache_tokens = cache_tokens
        self._requests: queue.SimpleQueue[Row | None] = queue.SimpleQueue()
        self._batches: list[Batch] = []
        self._weights = threading.Lock()
        self._loads: list[int] = []
        self._thread: threading.Thread | None = None

    @classmethod
    def load(cls, model: str | Path, *, dtype: str = "bfloat16", **kwargs: Any) -> Self:
        """From a folder, a hub id or the built-in name `smollm2-135m`; on a GPU where there is one.

        Raises:
            ConfigError: there is no such model, or it has no chat template.
        """
        source = str(resolve_model(str(model)))
        device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            tokenizer = AutoTokenizer.from_pretrained(source)
            loaded = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype))
        except (OSError, ValueError) as error:
            raise ConfigError(f"can't load the model {model}: {str(error).splitlines()[0]}") from error
        return cls(loaded.to(device).eval(), tokenizer, name=str(model), **kwargs)

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """One completion; cancelling it takes its row out of the batch at the next token."""
        if prompt.token_ids is None:
            raise ConfigError("TransformersPolicy reads token ids: render the prompt with its renderer")
        row = Row(prompt.token_ids, sampling)
        if not row.finished:
            await self._decoded(row)
        versions = tuple(row.versions)
        return Completion(
            text=self.renderer.decode(row.sampled),
            finish_reason="stop" if row.ended else "length",
            token_ids=tuple(row.sampled),
            logprobs=tuple(row.logprobs),
            policy_version=versions[0] if versions else self.version,
            token_versions=versions if len(set(versions)) > 1 else None,
        )

    async def current_load(self) -> PolicyLoad:
        """Rows in the running batches or about to join them, and those that wait for room."""
        asked = sum(len(batch.rows) for batch in self._batches) + self._requests.qsize()
        return PolicyLoad(min(asked, self._max_batch), max(0, asked - self._max_batch), places=self._max_batch)

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Copies weights by name, between two tokens; what is sampled from then on has this version.

        Completions that are being decoded go on: they keep what they have read under the earlier weights.

        Raises:
            PolicyError: a weight of the model is missing.
        """
        self._loads.append(version)  # the worker gives way
        try:
            with self._weights, torch.no_grad():
                for name, held in self.model.state_dict().items():
                    if name not in weights:
                        raise PolicyError(f"the new weights have no {name!r}")
                    held.copy_(weights[name])
                self.version = version
        finally:
            self._loads.remove(version)

    async def aclose(self) -> None:
        """Ends the thread once its batches are done; may be called twice."""
        if self._thread is not None:
            self._requests.put(None)
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    async def _decoded(self, row: Row) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="transformers-policy", daemon=True)
            self._thread.start()
        self._requests.put(row)
        try:
            await asyncio.wrap_future(row.done)
        except asyncio.CancelledError:
            row.cancelled = True
            raise

    # ---- the worker thread

    def _serve(self) -> None:
        decoder = Decoder(self.model, self.renderer.pad_id, self.renderer.eos_ids, cache_tokens=self._cache_tokens)
        more = True
        while more or self._batches:
            new, ending = self._arrived() if more else ([], False)
            more = more and not ending
            while self._loads:  # a lock alone is not fair: this thread would take it again at once
                time.sleep(0.001)
            with self._weights:
                self._advance(decoder, [row for row in new if not row.cancelled])

    def _advance(self, decoder: Decoder, new: list[Row]) -> None:
        """One token for every row, new ones among them."""
        try:
            if new:
                self._batches = decoder.admit(self._batches, new)
            stepped = [decoder.step(batch, self.version) for batch in self._batches]
            self._batches = [batch for batch in stepped if batch is not None]
            decoder.leave_room(self._batches)
        except Exception as error:  # noqa: BLE001 - every caller must hear of it
            for row in [*new, *(row for batch in self._batches for row in batch.rows)]:
                row.fail(error)
            self._batches = []

    def _arrived(self) -> tuple[list[Row], bool]:
        """Rows to take in now, and whether the end has been called. Waits only where nothing is being decoded."""
        room = self._max_batch - sum(len(batch.rows) for batch in self._batches)
        idle, rows = not self._batches, list[Row]()
        until = time.monotonic() + PATIENCE_S
        while len(rows) < room:
            try:
                if not idle:
                    row = self._requests.get_nowait()
                elif rows:
                    row = self._requests.get(timeout=max(0.0, min(QUIET_S, until - time.monotonic())))
                else:
                    row = self._requests.get()
                    until = time.monotonic() + PATIENCE_S
            except queue.Empty:
                break
            if row is None:
                return rows, True
            rows.append(row)
        return rows, False
