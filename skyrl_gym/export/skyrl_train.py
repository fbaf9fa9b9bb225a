"""SkyRL-train: the `GeneratorOutput` that its trainer takes from a generator.

The fields are those of `skyrl/train/generators/base.py` (NovaSky-AI/SkyRL, August 2026).
"""

from __future__ import annotations

from typing import Any

from skyrl_gym.errors import ConfigError
from skyrl_gym.export.selection import Selection, Sequence

__all__ = ["skyrl_train_output"]


def skyrl_train_output(selection: Selection) -> dict[str, Any]:
    """One batch. `trajectory_ids` are the arguments of a TrajectoryID.

    Rewards are per token: a trajectory's whole reward on the last token of its last sequence. An episode of
    one sequence fits both modes of that trainer; several need `step_wise_trajectories=true`. `rollout_logprobs`
    is None where a log-probability is missing.

    Raises:
        ConfigError: no trajectory has token ids.
    """
    batch = selection.batch()
    if not batch:
        raise ConfigError("nothing to export to SkyRL-train: no judged trajectory has token ids")
    logprobs = [sequence.aligned_logprobs for sequence in batch]
    return {
        "prompt_token_ids": [list(sequence.sample.prompt_ids) for sequence in batch],
        "response_ids": [list(sequence.sample.completion_ids) for sequence in batch],
        "rewards": [_rewards(sequence) for sequence in batch],
        "loss_masks": [list(sequence.sample.mask) for sequence in batch],
        "stop_reasons": [_stop_reason(sequence) for sequence in batch],
        "rollout_metrics": {"skyrl_gym/excluded": float(selection.excluded.total())},
        "rollout_logprobs": None if None in logprobs else logprobs,
        "trajectory_ids": [_identity(sequence) for sequence in batch],
        "is_last_step": [sequence.last for sequence in batch],
        "env_metrics": [dict(sequence.trajectory.metrics) for sequence in batch],
    }


def _rewards(sequence: Sequence) -> list[float]:
    rewards = [0.0] * len(sequence.sample.completion_ids)
    if sequence.last:
        rewards[-1] = sequence.reward
    return rewards


def _stop_reason(sequence: Sequence) -> str:
    """How the sequence's last answer ended, in the words of an inference engine."""
    return sequence.trajectory.turns[sequence.sample.turns[-1]].finish_reason


def _identity(sequence: Sequence) -> dict[str, Any]:
    trajectory = sequence.trajectory
    return {"instance_id": f"{trajectory.env_id}:{trajectory.group}", "repetition_id": trajectory.sample}
