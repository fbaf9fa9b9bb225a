"""Samples -> chunks, each one forward and backward pass: packed within bounds, padded into tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch

from skyrl_gym.trainer.samples import Sample

__all__ = ["collate", "deal", "filled", "pack"]

T = TypeVar("T")


def pack(samples: Sequence[Sample], max_rows: int, max_tokens: int | None = None) -> list[list[Sample]]:
    """Samples of like length together, so that little is padding.

    Args:
        max_rows: most sequences of a chunk.
        max_tokens: most tokens of a chunk, padding included. A single sequence that is longer gets a chunk
            of its own.
    """
    chunks: list[list[Sample]] = []
    for sample in sorted(samples, key=lambda s: s.tokens, reverse=True):
        if chunks and len(chunks[-1]) < max_rows and _fits([*chunks[-1], sample], max_tokens):
            chunks[-1].append(sample)
        else:
            chunks.append([sample])
    return chunks


def _fits(samples: Sequence[Sample], max_tokens: int | None) -> bool:
    if max_tokens is None:
        return True
    width = max(len(s.prompt_ids) for s in samples) + max(len(s.completion_ids) for s in samples)
    return width * len(samples) <= max_tokens


def deal(chunks: Sequence[T], micro_steps: int) -> list[list[T]]:
    """Chunks to micro-steps, evenly; the last micro-step has most, for gradients are exchanged in it."""
    return [list(chunks[micro_steps - 1 - step :: micro_steps]) for step in range(micro_steps)]


def filled(samples: Sequence[Sample], rows: int, pad_id: int) -> list[Sample]:
    """So many samples: those that are missing are padding outside the loss, for a process that waits for others."""
    return [*samples, *[Sample((pad_id,), (pad_id,), (0,), (), (), (), (), "", -1)] * (rows - len(samples))]


def collate(samples: Sequence[Sample], pad_id: int) -> dict[str, torch.Tensor]:
    """The tensors of a chunk, each (samples, length): prompts padded left, completions right.

    `advantages` is (rows,) where each row has a single one. `sampling_per_token_logps` is there only when
    every sample has logprobs.
    """
    completions = [s.completion_ids for s in samples]
    batch = {
        "prompt_ids": _pad([s.prompt_ids for s in samples], pad_id, left=True),
        "prompt_mask": _pad([[1] * len(s.prompt_ids) for s in samples], 0, left=True),
        "completion_ids": _pad(completions, pad_id),
        "completion_mask": _pad([[1] * len(ids) for ids in completions], 0),
        "tool_mask": _pad([s.mask for s in samples], 0),
    }
    if all(len(set(s.advantages)) <= 1 for s in samples):
        batch["advantages"] = torch.tensor([s.advantages[0] if s.advantages else 0.0 for s in samples])
    else:
        batch["advantages"] = _pad([s.spread(s.advantages) for s in samples], 0.0)
    if all(s.logprobs is not None for s in samples):
        batch["sampling_per_token_logps"] = _pad([s.spread(s.logprobs or ()) for s in samples], 0.0)
    return batch


def _pad(rows: Sequence[Sequence[float]], value: float, *, left: bool = False) -> torch.Tensor:
    width = max(map(len, rows))
    fill = [[value] * (width - len(row)) for row in rows]
    return torch.tensor([[*f, *row] if left else [*row, *f] for row, f in zip(rows, fill, strict=True)])
