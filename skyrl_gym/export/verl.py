"""VeRL: the tensors that its agent loop puts into a `DataProto`.

The names and paddings are those of `AgentLoopWorker._postprocess` (verl-project/verl, August 2026).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skyrl_gym.errors import ConfigError
from skyrl_gym.export.selection import Selection, Sequence

if TYPE_CHECKING:
    import numpy as np

__all__ = ["verl_batch"]


def verl_batch(selection: Selection, *, pad_id: int = 0) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The tensors and the non-tensors of a DataProto, as numpy arrays of one row a sequence.

    Prompts are padded on the left, responses on the right. `rm_scores` holds the trajectory's reward on a
    sequence's last token; `uid` names the group for group-relative advantages. `rollout_log_probs` is left
    out where a log-probability is missing.

    Raises:
        ConfigError: no trajectory has token ids.
    """
    import numpy as np

    batch = selection.batch()
    if not batch:
        raise ConfigError("nothing to export to VeRL: no judged trajectory has token ids")
    width = max(len(s.sample.prompt_ids) for s in batch)
    length = max(len(s.sample.completion_ids) for s in batch)
    responses = [list(s.sample.completion_ids) for s in batch]
    prompts = np.array([_left(s.sample.prompt_ids, width, pad_id) for s in batch], np.int64)
    padded = np.array([_right(ids, length, pad_id) for ids in responses], np.int64)
    attention = np.array(
        [
            _left([1] * len(s.sample.prompt_ids), width, 0) + _right([1] * len(ids), length, 0)
            for s, ids in zip(batch, responses, strict=True)
        ],
        np.int64,
    )
    tensors = {
        "prompts": prompts,
        "responses": padded,
        "response_mask": np.array([_right(s.sample.mask, length, 0) for s in batch], np.int64),
        "input_ids": np.concatenate([prompts, padded], axis=1),
        "attention_mask": attention,
        "position_ids": np.maximum(attention.cumsum(axis=1) - 1, 0),
        "rm_scores": _scores(batch, length),
    }
    logprobs = [s.aligned_logprobs for s in batch]
    if all(row is not None for row in logprobs):
        tensors["rollout_log_probs"] = np.array([_right(row or (), length, 0.0) for row in logprobs], np.float32)
    return tensors, _columns(batch)


def _columns(batch: list[Sequence]) -> dict[str, np.ndarray]:
    import numpy as np

    columns: dict[str, list[Any]] = {
        "uid": [f"{s.trajectory.env_id}:{s.trajectory.group}" for s in batch],
        "data_source": [s.trajectory.env_id for s in batch],
        "task_id": [s.trajectory.task_id for s in batch],
        "trajectory": [s.sample.trajectory for s in batch],
        "is_last_sequence": [s.last for s in batch],
        "__num_turns__": [len(s.trajectory.turns) for s in batch],
    }
    return {name: np.array(values, np.int32 if name == "__num_turns__" else object) for name, values in columns.items()}


def _scores(batch: list[Sequence], length: int) -> np.ndarray:
    import numpy as np

    scores = np.zeros((len(batch), length), np.float32)
    for row, sequence in enumerate(batch):
        scores[row, len(sequence.sample.completion_ids) - 1] = sequence.reward
    return scores


def _left(values: Any, width: int, fill: Any) -> list[Any]:
    return [fill] * (width - len(values)) + list(values)


def _right(values: Any, width: int, fill: Any) -> list[Any]:
    return list(values) + [fill] * (width - len(values))
