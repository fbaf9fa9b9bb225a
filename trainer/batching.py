"""Cutting samples into micro-steps and chunks, and padding a chunk into tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import torch

from skyrl_gym.trainer.samples import Sample

__all__ = ["Plan", "collate", "cut", "plan"]


class Plan(NamedTuple):
    """The same on every process, as collective operations need: each micro-step has `chunks` of `rows` rows."""

    chunks: int
    rows: int


def plan(samples: int, micro_steps: int, max_rows: int) -> Plan:
    """The plan for the process that has most samples."""
    per_step = max(1, math.ceil(samples / micro_steps))
    chunks = math.ceil(per_step / max_rows)
    return Plan(chunks, math.ceil(per_step / chunks))


def cut(samples: Sequence[Sample], micro_steps: int, shape: Plan, seed: int) -> list[list[list[Sample]]]:
    """Samples as [micro-step][chunk][row], shuffled over micro-steps, sorted by length within one."""
    order = list(samples)
    Random(seed).shuffle(order)
    steps = [sorted(order[step::micro_steps], key=lambda s: s.tokens) for step in range(micro_steps)]
    return [[step[c * shape.rows : (c + 1) * shape.rows] for c in range(shape.chunks)] for step in steps]


def collate(samples: Sequence[Sample], rows: int, pad_id: int) -> dict[str, torch.Tensor]:
    """The tensors of a chunk, each (rows, length): prompts padded left, completions right.

    Missing rows are filled with a pad token outside the loss. `sampling_per_token_logps` is there only when
    every sample has logprobs.
    """
    dummies = rows - len(samples)
    prompts = [list(s.prompt_ids) for s in samples] + [[pad_id]] * dummies
    completions = [list(s.completion_ids) for s in samples] + [[pad_id]] * dummies
    batch = {
        "prompt_ids": _pad(prompts, pad_id, left=True),
        "prompt_mask": _pad([[1] * len(p) for p in prompts], 0, left=True),
        "completion_ids": _pad(completions, pad_id),
        "completion_mask": _pad([[1] * len(c) for c in completions], 0),
        "tool_mask": _pad([list(s.mask) for s in samples] + [[0]] * dummies, 0),
        "advantages": torch.tensor([s.advantage for s in samples] + [0.0] * dummies),
    }
    if all(s.logprobs is not None for s in samples):
        spread = [_spread(s) for s in samples] + [[0.0]] * dummies
        batch["sampling_per_token_logps"] = _pad(spread, 0.0)
    return batch


def _spread(sample: Sample) -> list[float]:
    """Logprobs at the places of their tokens."""
    values = iter(sample.logprobs or ())
    return [next(values) if bit else 0.0 for bit in sample.mask]


def _pad(rows: Sequence[Sequence[float]], value: float, *, left: bool = False) -> torch.Tensor:
    width = max(map(len, rows))
    fill = [[value] * (width - len(row)) for row in rows]
    return torch.tensor([[*f, *row] if left else [*row, *f] for row, f in zip(rows, fill, strict=True)])
