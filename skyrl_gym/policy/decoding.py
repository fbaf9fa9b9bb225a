"""Continuous batching: rows join a running batch and leave it, each with exact ids and logprobs."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from skyrl_gym.errors import PolicyError
from skyrl_gym.policy.base import Sampling
from skyrl_gym.policy.prefixes import Ids, Known, Layers, Prefixes

__all__ = ["Batch", "Decoder", "Row"]

COMPACT_BELOW = 0.75  # finished rows leave the batch once fewer than this share of it is alive
MOST_PADDING = 2.0  # a batch holds at most this many times the tokens that it would hold without padding


@dataclass(eq=False)
class Row:
    """One request while it is decoded. `versions` has the version of the weights for each id.

    `stamp` stands for the weights that its prompt was read with.
    """

    prompt: Ids
    sampling: Sampling
    done: Future[None] = field(default_factory=Future)
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    ended: bool = False
    cancelled: bool = False
    stamp: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.sampling.seed)

    @property
    def finished(self) -> bool:
        """Nothing more is sampled for it."""
        return self.ended or self.cancelled or len(self.sampled) >= self.sampling.max_tokens

    @property
    def length(self) -> int:
        """Tokens, prompt and sampled."""
        return len(self.prompt) + len(self.sampled)

    def take(self, token: int, logprob: float, eos_ids: frozenset[int], version: int) -> None:
        """Notes what was drawn for it; a finished row that still rides along drops it."""
        if self.finished:
            return
        self.sampled.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        self.ended = token in eos_ids
        if self.finished and not self.done.cancelled():
            self.done.set_result(None)

    def fail(self, error: Exception) -> None:
        """Tells the caller."""
        if not self.done.done():
            self.done.set_exception(PolicyError(f"decoding failed: {type(error).__name__}: {error}"))


@dataclass(eq=False)
class Batch:
    """Rows that are decoded together: the logits (rows, vocabulary) of their next ids, cache and mask."""

    rows: list[Row]
    logits: torch.Tensor
    cache: DynamicCache
    mask: torch.Tensor


class Decoder:
    """Reads prompts and draws ids for a causal language model.

    Args:
        model: a causal LM, in eval mode.
        pad_id: for the left of shorter prompts; never attended to.
        eos_ids: ids that end a row.
        cache_tokens: room for keys and values. What running rows leave of it holds those of finished ones, for
            prompts that begin with them, until a weight changes in place. Running rows may take more.
    """

    def __init__(self, model: Any, pad_id: int, eos_ids: frozenset[int], *, cache_tokens: int = 0) -> None:
        self._model = model
        self._pad_id = pad_id
        self._eos_ids = eos_ids
        self._prefixes = Prefixes(cache_tokens)
        # transformers is renaming this argument; both names are in use across the versions that we take.
        known = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in known else "past_key_values"

    @torch.inference_mode()
    def admit(self, batches: Sequence[Batch], rows: Sequence[Row]) -> list[Batch]:
        """The batches with new rows among them: read, and joined where that pads little."""
        stamp = self._weights_stamp()
        self._prefixes.renew(stamp)
        known = {prompt: self._prefixes.find(prompt) for prompt in {row.prompt for row in rows}}
        for row in rows:
            row.stamp = stamp

        def unread(row: Row) -> int:
            return len(row.prompt) - known[row.prompt].tokens

        alike = [part for group in _groups(rows, lambda row: row.length) for part in _groups(group, unread)]
        return _joined([*batches, *(self._read(group, known) for group in alike)])

    @torch.inference_mode()
    def step(self, batch: Batch, version: int) -> Batch | None:
        """Draws one id for each row; the batch of those that go on, or None."""
        ids, logprobs = _sample(batch.logits, batch.rows)
        going_on = [row for row in batch.rows if not row.finished]
        for row, token, logprob in zip(batch.rows, ids.tolist(), logprobs.tolist(), strict=True):
            row.take(token, logprob, self._eos_ids, version)
        self._keep(batch, [row for row in going_on if row.finished])
        live = [i for i, row in enumerate(batch.rows) if not row.finished]
        if not live:
            return None
        rows, mask = batch.rows, batch.mask
        if len(live) < COMPACT_BELOW * len(rows):
            rows, ids, mask = _compact(batch, live, ids)
        mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
        return Batch(rows, self._forward(ids[:, None], mask, batch.cache), batch.cache, mask)

    def leave_room(self, batches: Sequence[Batch]) -> None:
        """Gives up what was kept of finished rows, as far as the running ones need the room."""
        self._prefixes.leave_room(sum(batch.mask.numel() for batch in batches))

    def _read(self, rows: list[Row], known: Mapping[Ids, Known]) -> Batch:
        """Reads each different prompt once, all from as many ids before their ends as the newest one needs."""
        prompts = list(dict.fromkeys(row.prompt for row in rows))
        new = max(len(prompt) - known[prompt].tokens for prompt in prompts)
        starts = [max(0, len(prompt) - new) for prompt in prompts]
        width = max(starts) + new
        device = self._model.device
        unread = [prompt[start:] for prompt, start in zip(prompts, starts, strict=True)]
        ids = torch.tensor([[self._pad_id] * (new - len(part)) + list(part) for part in unread], device=device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
        cache = DynamicCache(config=self._model.config)
        if width > new:
            _restore(cache, [known[prompt].layers for prompt in prompts], starts)
        logits = self._forward(ids, mask, cache)
        if len(prompts) < len(rows):
            place = {prompt: i for i, prompt in enumerate(prompts)}
            index = torch.tensor([place[row.prompt] for row in rows], device=device)
            cache.batch_select_indices(index)
            logits, mask = logits[index], mask[index]
        return Batch(rows, logits, cache, mask)

    def _keep(self, batch: Batch, rows: Sequence[Row]) -> None:
        """Of rows that have just got their last id, which was not read any more."""
        if not (rows and _is_plain(batch.cache)):
            return
        stamp = self._weights_stamp()
        for row in rows:
            if row.stamp != stamp or row.cancelled:
                continue
            ids = (*row.prompt, *row.sampled[:-1])
            self._prefixes.keep(ids, partial(_taken_out, batch, batch.rows.index(row), len(ids)))

    def _weights_stamp(self) -> int:
        """Another number after each change in place: torch counts them for each tensor that it tracks."""
        return sum(weight._version for weight in self._model.parameters() if not weight.is_inference())

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        out = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: cache},
        )
        logits: torch.Tensor = out.logits[:, -1].float()
        return logits


def _restore(cache: DynamicCache, kept: Sequence[Layers], starts: Sequence[int]) -> None:
    """Fills an empty cache with the first `starts` tokens of each row, padded on the left."""
    width = max(starts)
    some = next(layers for layers in kept if layers)
    rows = [layers or some for layers in kept]  # of a row that nothing is known of, nothing is taken

    def stacked(layer: int, of: int) -> torch.Tensor:
        parts = [row[layer][of][:, :n] for row, n in zip(rows, starts, strict=True)]
        return torch.stack([torch.nn.functional.pad(part, (0, 0, width - part.shape[1], 0)) for part in parts])

    for layer in range(len(some)):
        cache.update(stacked(layer, 0), stacked(layer, 1), layer)


def _taken_out(batch: Batch, row: int, tokens: int) -> Layers:
    """A copy of one row's keys and values: views would hold the whole batch."""
    start = batch.mask.shape[1] - tokens
    return [(layer.keys[row, :, start:].clone(), layer.values[row, :, start:].clone()) for layer in batch.cache.layers]


def _is_plain(*caches: DynamicCache) -> bool:
    """Every layer has all keys and values, token by token: no window and no state."""
    return all(type(layer) is DynamicLayer for cache in caches for layer in cache.layers)


def _groups(rows: Sequence[Row], size: Callable[[Row], int]) -> list[list[Row]]:
    """Rows of like size together."""
    groups: list[list[Row]] = []
    for row in sorted(rows, key=size):
        if groups and _pads_little([*map(size, groups[-1]), size(row)]):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _pads_little(lengths: Sequence[int]) -> bool:
    return max(lengths) * len(lengths) <= MOST_PADDING * sum(lengths)


def _joined(batches: Sequence[Batch]) -> list[Batch]:
    joined: list[Batch] = []
    for batch in sorted(batches, key=lambda batch: batch.mask.shape[1]):
        if joined and _can_join(joined[-1], batch):
            joined[-1] = _join(joined[-1], batch)
        else:
            joined.append(batch)
    return joined


def _can_join(short: Batch, long: Batch) -> bool:
    width = max(short.mask.shape[1], long.mask.shape[1])
    rows = [*short.rows, *long.rows]
    return _is_plain(short.cache, long.cache) and width * len(rows) <= MOST_PADDING * sum(row.length for row in rows)


def _join(short: Batch, long: Batch) -> Batch:
    """The shorter batch is padded on its left, where its mask hides it."""
    missing = long.mask.shape[1] - short.mask.shape[1]
    pad = torch.nn.functional.pad
    for layer, longer in zip(short.cache.layers, long.cache.layers, strict=True):
        layer.keys = torch.cat([pad(layer.keys, (0, 0, missing, 0)), longer.keys])
        layer.values = torch.cat([pad(layer.values, (0, 0, missing, 0)), longer.values])
    mask = torch.cat([pad(short.mask, (missing, 0)), long.mask])
    return Batch([*short.rows, *long.rows], torch.cat([short.logits, long.logits]), short.cache, mask)


def _compact(batch: Batch, live: list[int], ids: torch.Tensor) -> tuple[list[Row], torch.Tensor, torch.Tensor]:
    """Finished rows out, and the columns that only they had filled."""
    index = torch.tensor(live, device=batch.mask.device)
    batch.cache.batch_select_indices(index)
    mask = batch.mask[index]
    empty = int(mask.any(0).int().argmax())
    if empty and _is_plain(batch.cache):
        mask = mask[:, empty:]
        for layer in batch.cache.layers:
            layer.keys, layer.values = layer.keys[..., empty:, :], layer.values[..., empty:, :]
    return [batch.rows[i] for i in live], ids[index], mask


def _sample(logits: torch.Tensor, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """One id a row from logits (rows, vocabulary), and its logprob under what it was drawn from."""
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
    return ids, logprobs.gather(1, ids[:, None])[:, 0]


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
