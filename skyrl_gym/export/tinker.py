"""Tinker: `Datum`, one sequence with everything that a loss needs.

Position i of the input predicts token i + 1, so every list is shifted by one (tinker-docs, "Datum").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from skyrl_gym.export.selection import Selection, Sequence
from skyrl_gym.trainer.advantages import Estimator, advantages

__all__ = ["tinker_rows"]


def tinker_rows(selection: Selection, *, advantage: Estimator = "mean") -> Iterator[dict[str, Any]]:
    """Each row's `tokens` go into `ModelInput.from_ints`, its `loss_fn_inputs` into the Datum as they are.

    `target_tokens`, `weights` (1.0 on sampled tokens), `advantages` (0.0 elsewhere) and `logprobs`, which is
    left out where it is missing: such a Datum fits the loss "cross_entropy" alone.

    Args:
        advantage: how rewards become advantages within a group, as in training.
    """
    batch = selection.batch()
    trajectories = {s.sample.trajectory: s.trajectory for s in batch}
    known = advantages(
        [t.reward for t in trajectories.values()], [(t.env_id, t.group) for t in trajectories.values()], advantage
    )
    by_trajectory = dict(zip(trajectories, known, strict=True))
    for sequence in batch:
        credit = by_trajectory[sequence.sample.trajectory] or 0.0
        credits = tuple(credit for _ in sequence.sample.turns)
        yield _row(replace(sequence, sample=replace(sequence.sample, advantages=credits)))


def _row(sequence: Sequence) -> dict[str, Any]:
    sample = sequence.sample
    ids = [*sample.prompt_ids, *sample.completion_ids]
    unsampled = [0.0] * (len(sample.prompt_ids) - 1)
    inputs: dict[str, Any] = {
        "target_tokens": ids[1:],
        "weights": unsampled + [float(sampled) for sampled in sample.mask],
        "advantages": unsampled + sample.spread(sample.advantages),
    }
    if (logprobs := sequence.aligned_logprobs) is not None:
        inputs["logprobs"] = unsampled + logprobs
    return {
        "tokens": ids[:-1],
        "loss_fn_inputs": inputs,
        "reward": sequence.reward,
        "task_id": sequence.trajectory.task_id,
        "group": sequence.trajectory.group,
        "sample": sequence.trajectory.sample,
    }
