"""Plain tables for `datasets`, pandas, DuckDB: a trajectory a row, everything in it that a trainer could want."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from skyrl_gym.export.selection import Selection
from skyrl_gym.messages import ImagePart, Message
from skyrl_gym.rollout import Trajectory
from skyrl_gym.trainer.samples import Sample, samples_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["hf_rows", "hf_schema"]


def hf_rows(selection: Selection) -> Iterator[dict[str, Any]]:
    """Rows of the same shape whatever the environment, as Arrow needs it.

    `messages` is the transcript, one message after the other; `sequences` holds the exact ids, masks and
    log-probabilities, one entry a context, empty where the policy gave no ids; `metrics` is JSON text.
    """
    for trajectory in selection:
        whole = all(turn.transition is not None for turn in trajectory.turns)
        samples = samples_of(trajectory, 0, 0.0) if whole else []
        selection.without_tokens += not samples
        selection.without_logprobs += sum(sample.logprobs is None for sample in samples)
        yield {
            "env_id": trajectory.env_id,
            "task_id": trajectory.task_id,
            "task_hash": trajectory.task_hash,
            "group": trajectory.group,
            "sample": trajectory.sample,
            "policy": trajectory.policy,
            "reward": trajectory.reward,
            "stop_reason": trajectory.stop_reason.value,
            "metrics": json.dumps(dict(trajectory.metrics), ensure_ascii=False),
            "messages": [_message(message) for message in _transcript(trajectory)],
            "sequences": [_sequence(sample) for sample in samples],
        }


def hf_schema() -> pa.Schema:
    """The Arrow schema of the rows."""
    import pyarrow as pa

    text, ids = pa.string(), pa.list_(pa.int32())
    call = pa.struct({"id": text, "name": text, "arguments": text})
    message = pa.struct(
        {
            "role": text,
            "content": text,
            "images": pa.list_(text),
            "reasoning": text,
            "tool_calls": pa.list_(call),
            "tool_call_id": text,
            "name": text,
        }
    )
    sequence = pa.struct(
        {
            "prompt_ids": ids,
            "completion_ids": ids,
            "mask": pa.list_(pa.int8()),
            "logprobs": pa.list_(pa.float64()),
            "policy_versions": ids,
        }
    )
    names = ("env_id", "task_id", "task_hash", "group")
    return pa.schema(
        {
            **dict.fromkeys(names, text),
            "sample": pa.int64(),
            "policy": text,
            "reward": pa.float64(),
            "stop_reason": text,
            "metrics": text,
            "messages": pa.list_(message),
            "sequences": pa.list_(sequence),
        }
    )


def _transcript(trajectory: Trajectory) -> Iterator[Message]:
    yield from trajectory.opening
    for turn in trajectory.turns:
        yield turn.message
        yield from turn.observations


def _message(message: Message) -> dict[str, Any]:
    parts = message.content if isinstance(message.content, tuple) else ()
    return {
        "role": message.role,
        "content": None if message.content is None else message.text,
        "images": [part.url for part in parts if isinstance(part, ImagePart)],
        "reasoning": message.reasoning,
        "tool_calls": [{"id": c.id, "name": c.name, "arguments": c.arguments_json()} for c in message.tool_calls],
        "tool_call_id": message.tool_call_id,
        "name": message.name,
    }


def _sequence(sample: Sample) -> dict[str, Any]:
    """`logprobs` and `policy_versions` have one entry for each token with mask 1."""
    return {
        "prompt_ids": list(sample.prompt_ids),
        "completion_ids": list(sample.completion_ids),
        "mask": list(sample.mask),
        "logprobs": None if sample.logprobs is None else list(sample.logprobs),
        "policy_versions": list(sample.versions),
    }
