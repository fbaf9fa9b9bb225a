"""Conversations for fine-tuning: OpenAI messages (TRL's SFTTrainer, hosted services), and ShareGPT.

An episode whose context was replaced gives one row a context, as the policy saw them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from skyrl_gym.chat.dialects import Dialect, get_dialect
from skyrl_gym.export.selection import Selection
from skyrl_gym.messages import Conversation, Message, to_openai
from skyrl_gym.rollout import Trajectory
from skyrl_gym.tools import ToolSpec

__all__ = ["sft_rows", "sharegpt_rows"]

_SPEAKER = {"system": "system", "user": "human", "assistant": "gpt", "tool": "tool"}


def sft_rows(selection: Selection, tools: Sequence[ToolSpec] = ()) -> Iterator[dict[str, Any]]:
    """Rows of `messages` in the OpenAI form, and `tools` where there are some, with reward and origin.

    Arguments of calls are objects, as chat templates want them; malformed ones stay text.
    """
    for trajectory in selection:
        for conversation in _trainable(trajectory):
            row: dict[str, Any] = {"messages": [_message(message) for message in conversation]}
            if tools:
                row["tools"] = [spec.to_openai() for spec in tools]
            yield row | _origin(trajectory)


def sharegpt_rows(
    selection: Selection, tools: Sequence[ToolSpec] = (), *, dialect: str = "hermes"
) -> Iterator[dict[str, Any]]:
    """Rows of `conversations`: turns of system, human, gpt and tool; `tools` is JSON text.

    Calls and results are written in the dialect; results of one turn share a tool turn, so speakers alternate.
    """
    form = get_dialect(dialect)
    for trajectory in selection:
        for conversation in _trainable(trajectory):
            row: dict[str, Any] = {"conversations": list(_turns(conversation, form))}
            if tools:
                row["tools"] = json.dumps([spec.to_openai() for spec in tools], ensure_ascii=False)
            yield row | _origin(trajectory)


def _trainable(trajectory: Trajectory) -> Iterator[Conversation]:
    """The conversations that hold an answer, each up to its last answer."""
    for conversation in trajectory.conversations():
        answers = [i for i, message in enumerate(conversation) if message.role == "assistant"]
        if answers:
            yield conversation[: answers[-1] + 1]


def _origin(trajectory: Trajectory) -> dict[str, Any]:
    return {"reward": trajectory.reward, "env_id": trajectory.env_id, "task_id": trajectory.task_id}


def _message(message: Message) -> dict[str, Any]:
    data = to_openai(message)
    for call, source in zip(data.get("tool_calls", ()), message.tool_calls, strict=True):
        if not isinstance(source.arguments, str):
            call["function"]["arguments"] = dict(source.arguments)
    return data


def _turns(conversation: Conversation, dialect: Dialect) -> Iterator[dict[str, str]]:
    for role, messages in groupby(conversation, key=lambda message: message.role):
        texts = [_text(message, dialect) for message in messages]
        for text in ["\n".join(texts)] if role == "tool" else texts:
            yield {"from": _SPEAKER[role], "value": text}


def _text(message: Message, dialect: Dialect) -> str:
    if message.role == "tool":
        return dialect.render_result(message.text)
    thought = [f"<think>\n{message.reasoning}\n</think>"] if message.reasoning else []
    said = [message.text] if message.text else []
    return "\n".join([*thought, *said, *(dialect.render_call(call) for call in message.tool_calls)])
