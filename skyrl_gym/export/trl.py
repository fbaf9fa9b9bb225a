"""TRL: what a `rollout_func` of its GRPOTrainer gives back, a sequence a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from skyrl_gym.export.selection import Selection

__all__ = ["trl_rows"]


def trl_rows(selection: Selection) -> Iterator[dict[str, Any]]:
    """`prompt_ids`, `completion_ids`, `logprobs` and `env_mask` as TRL names them, and what they belong to.

    `env_mask` is 1 on sampled tokens; `logprobs` is 0.0 elsewhere, as TRL fills it, and null where unknown.
    """
    for sequence in selection.sequences():
        yield {
            "prompt_ids": list(sequence.sample.prompt_ids),
            "completion_ids": list(sequence.sample.completion_ids),
            "logprobs": sequence.aligned_logprobs,
            "env_mask": list(sequence.sample.mask),
            "reward": sequence.reward,
            "env_id": sequence.trajectory.env_id,
            "task_id": sequence.trajectory.task_id,
            "group": sequence.trajectory.group,
            "sample": sequence.trajectory.sample,
        }
