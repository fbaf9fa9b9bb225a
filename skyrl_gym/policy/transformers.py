"""A Hugging Face model in this process: concurrent requests are batched, ids and logprobs are exact."""

from __future__ import annotations

import asyncio
import inspect
import queue
import random
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

try:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
except ImportError as error:
    from skyrl_gym.errors import MissingDependency

    raise MissingDependency.extra(error.name or "transformers", "train") from None

from skyrl_gym.chat import Renderer
from skyrl_gym.errors import ConfigError, PolicyError
from skyrl_gym.policy.base import Completion, Prompt, Sampling
from skyrl_gym.policy.models import resolve_model

__all__ = ["TransformersPolicy"]

QUIET_S = 0.008  # a batch starts when nothing has arrived for this long ...
PATIENCE_S = 0.05  # ... and at the latest this long after its first request
COMPACT_BELOW = 0.75  # finished rows leave the batch once fewer than this share of it is alive


class TransformersPolicy:
    """Samples from a causal language model.

    Requests that arrive together are decoded as one batch in a thread of its own, with a KV cache; equal
    prompts are read once, and finished rows leave the batch. Logprobs are those of the distribution that
    was sampled from (after temperature, top-k and top-p; at temperature 0, of the plain softmax). A seeded
    row draws from a generator of its own, whatever shares its batch.

    Args:
        model: a causal LM, in eval mode.
        tokenizer: its tokenizer, with a chat template.
        dialect: how it writes tool calls.
        max_batch: most rows decoded at once.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, dialect: str = "auto", max_batch: int = 64, name: str = ""
    ) -> None:
        self.model = model
        self.renderer = Renderer(tokenizer, dialect)
        self.name = name or str(getattr(model, "name_or_path", "")) or type(model).__name__
        self.version = 0
        self._max_batch = max_batch
        # transformers is renaming this argument; both names are in use across the versions that we take.
        known = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in known else "past_key_values"
        self._requests: queue.SimpleQueue[_Row | None] = queue.SimpleQueue()
        self._weights = threading.Lock()
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
        row = _Row(prompt.token_ids, sampling)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="transformers-policy", daemon=True)
            self._thread.start()
        self._requests.put(row)
        try:
            await asyncio.wrap_future(row.done)
        except asyncio.CancelledError:
            row.cancelled = True
            raise
        return Completion(
            text=self.renderer.decode(row.sampled),
            finish_reason="stop" if row.ended else "length",
            token_ids=tuple(row.sampled),
            logprobs=tuple(row.logprobs),
            policy_version=row.version,
        )

    def load_weights(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Copies weights by name, between two batches; later completions carry this version.

        Raises:
            PolicyError: a weight of the model is missing.
        """
        with self._weights, torch.no_grad():
            for name, held in self.model.state_dict().items():
                if name not in weights:
                    raise PolicyError(f"the new weights have no {name!r}")
                held.copy_(weights[name])
            self.version = version

    async def aclose(self) -> None:
        """Ends the thread once its batch is done; may be called twice."""
        if self._thread is not None:
            self._requests.put(None)
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    # ---- the worker thread

    def _serve(self) -> None:
        while (first := self._requests.get()) is not None:
            rows, more = self._gather(first)
            try:
                with self._weights:
                    self._decode([row for row in rows if not row.cancelled])
            except Exception as error:  # noqa: BLE001 - every caller must hear of it
                for row in rows:
                    row.fail(error)
            if not more:
                return

    def _gather(self, first: _Row) -> tuple[list[_Row], bool]:
        rows, until = [first], time.monotonic() + PATIENCE_S
        while len(rows) < self._max_batch and (left := until - time.monotonic()) > 0:
            try:
                row = self._requests.get(timeout=min(QUIET_S, left))
            except queue.Empty:
                break
            if row is None:
                return rows, False
            rows.append(row)
        return rows, True

    @torch.inference_mode()
    def _decode(self, rows: list[_Row]) -> None:
        if not rows:
            return
        logits, cache, mask = self._prefill(rows)
        while True:
            ids = _sample(logits, rows)
            for row, token in zip(rows, ids.tolist(), strict=True):
                row.take(token, self.renderer.eos_ids, self.version)
            live = [i for i, row in enumerate(rows) if not row.finished]
            if not live:
                return
            if len(live) < COMPACT_BELOW * len(rows):
                index = torch.tensor(live, device=mask.device)
                cache.batch_select_indices(index)
                mask, ids, rows = mask[index], ids[index], [rows[i] for i in live]
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
            logits = self._forward(ids[:, None], mask, cache)

    def _prefill(self, rows: list[_Row]) -> tuple[torch.Tensor, DynamicCache, torch.Tensor]:
        """Reads each different prompt once; logits (rows, vocabulary), cache and mask of all rows."""
        prompts = list(dict.fromkeys(row.prompt for row in rows))
        width = max(map(len, prompts))
        pad = self.renderer.pad_id
        ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts], device=self.model.device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=self.model.device)
        cache = DynamicCache(config=self.model.config)
        logits = self._forward(ids, mask, cache)
        if len(prompts) < len(rows):
            place = {prompt: i for i, prompt in enumerate(prompts)}
            index = torch.tensor([place[row.prompt] for row in rows], device=mask.device)
            cache.batch_select_indices(index)
            logits, mask = logits[index], mask[index]
        return logits, cache, mask

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        out = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: cache},
        )
        logits: torch.Tensor = out.logits[:, -1].float()
        return logits


@dataclass(eq=False)
class _Row:
    """One request while it is decoded."""

    prompt: tuple[int, ...]
    sampling: Sampling
    done: Future[None] = field(default_factory=Future)
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ended: bool = False
    cancelled: bool = False
    version: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.sampling.seed)

    @property
    def finished(self) -> bool:
        return self.ended or self.cancelled or len(self.sampled) >= self.sampling.max_tokens

    def take(self, token: int, eos_ids: frozenset[int], version: int) -> None:
        if self.done.done() or self.finished:
            # A finished row that still rides along; `_sample` gave it a logprob, which is dropped.
            del self.logprobs[len(self.sampled) :]
            return
        self.sampled.append(token)
        self.version = version
        self.ended = token in eos_ids
        if self.finished and not self.done.cancelled():
            self.done.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(PolicyError(f"decoding failed: {type(error).__name__}: {error}"))


def _sample(logits: torch.Tensor, rows: Sequence[_Row]) -> torch.Tensor:
    """Draws one id a row from logits (rows, vocabulary), and notes its logprob in the row."""
    settings = [row.sampling for row in rows]
    greedy = torch.tensor([s.temperature == 0 for s in settings], device=logits.device)
    temperature = torch.tensor([s.temperature or 1.0 for s in settings], device=logits.device)
    logits = logits / temperature[:, None]
    if any(s.top_k or s.top_p < 1 for s in settings):
        logits = torch.stack([_truncate(row, s) for row, s in zip(logits, settings, strict=True)])
    logprobs = logits.log_softmax(-1)
    mass = logprobs.double().exp().cumsum(-1)
    draws = torch.tensor([[row.random.random()] for row in rows], dtype=mass.dtype, device=mass.device)
    drawn = torch.searchsorted(mass, draws * mass[:, -1:], right=True).clamp(max=logits.shape[1] - 1)[:, 0]
    ids = torch.where(greedy, logits.argmax(-1), drawn)
    for row, value in zip(rows, logprobs.gather(1, ids[:, None])[:, 0].tolist(), strict=True):
        row.logprobs.append(value)
    return ids


def _truncate(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Logits (vocabulary,) with all but the top-k, and all outside the top-p nucleus, at -inf."""
    if sampling.top_k:
        floor = logits.topk(min(sampling.top_k, logits.numel())).values[-1]
        logits = logits.masked_fill(logits < floor, -torch.inf)
    if sampling.top_p < 1:
        order = logits.argsort(descending=True)
        probabilities = logits[order].softmax(-1)
        outside = order[probabilities.cumsum(-1) - probabilities >= sampling.top_p]
        logits = logits.index_fill(0, outside, -torch.inf)
    return logits
