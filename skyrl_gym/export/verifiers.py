"""verifiers: episodes as its `traces.jsonl` holds them, one trace each.

A trace is a graph of messages: a node names its predecessor and the tokens that it adds. The shape is that of
`WireEpisode` and `WireTrace` (verifiers 0.4).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from skyrl_gym.export.selection import Selection
from skyrl_gym.messages import Conversation, Message, to_openai
from skyrl_gym.rollout import Trajectory, Transition

__all__ = ["verifiers_rows"]


def verifiers_rows(selection: Selection) -> Iterator[dict[str, Any]]:
    """One episode a row. A rewritten context starts a new branch; missing log-probabilities stay empty."""
    for trajectory in selection:
        tokens = [turn.transition for turn in trajectory.turns]
        selection.without_tokens += not tokens or None in tokens
        selection.without_logprobs += any(step is not None and step.logprobs is None for step in tokens)
        task = {"type": trajectory.env_id, "data": {"id": trajectory.task_id}, "key": trajectory.task_hash}
        yield {
            "env": {"id": trajectory.env_id},
            "task": task,
            "traces": [_trace(trajectory, task)],
            "ok": True,
        }


def _trace(trajectory: Trajectory, task: dict[str, Any]) -> dict[str, Any]:
    identity = f"{trajectory.env_id} {trajectory.task_hash} {trajectory.sample}"
    graph = _Graph()
    graph.fill(trajectory)
    return {
        "id": hashlib.sha256(identity.encode()).hexdigest()[:32],
        "task": task,
        "agent": {"config": {"model": trajectory.policy}, "name": "agent"},
        "nodes": graph.nodes,
        "rewards": {"reward": {"score": trajectory.reward, "weight": 1.0}},
        "metrics": dict(trajectory.metrics),
        "info": {"env_id": trajectory.env_id, "group": trajectory.group, "sample": trajectory.sample},
        "is_completed": True,
        "ok": True,
        "stop_condition": trajectory.stop_reason.value,
    }


class _Graph:
    """The nodes while a trajectory is walked through; `tip` is the last of the current branch."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.tip: int | None = None

    def fill(self, trajectory: Trajectory) -> None:
        context = trajectory.opening
        self._extend(context)
        for number, turn in enumerate(trajectory.turns):
            if number and turn.transition is not None and turn.transition.fork:
                self._restart(context)
            self._answer(turn.message, turn.transition)
            if turn.context_edit:
                context = turn.observations
                self._restart(context)
            else:
                context = (*context, turn.message, *turn.observations)
                self._extend(turn.observations)

    def _restart(self, context: Conversation) -> None:
        """A new branch, unless the current one holds nothing but this context."""
        if self.tip is not None and not self._has_answer():
            return
        self.tip = None
        self._extend(context)

    def _has_answer(self) -> bool:
        node = self.tip
        while node is not None:
            if self.nodes[node]["sampled"]:
                return True
            node = self.nodes[node]["parent"]
        return False

    def _extend(self, messages: Conversation) -> None:
        for message in messages:
            self._add(message)

    def _add(self, message: Message, **fields: Any) -> None:
        node: dict[str, Any] = {
            "parent": self.tip,
            "message": _message(message),
            "sampled": False,
            "token_ids": [],
            "mask": [],
        }
        self.nodes.append({**node, "logprobs": [], **fields})
        self.tip = len(self.nodes) - 1

    def _answer(self, message: Message, step: Transition | None) -> None:
        """The tokens of the messages before an answer stand on its node: together they are the exact prompt."""
        if step is None:
            self._add(message, sampled=True)
            return
        self._add(
            message,
            sampled=True,
            token_ids=[*step.input_ids, *step.sampled_ids],
            mask=[False] * len(step.input_ids) + [True] * len(step.sampled_ids),
            logprobs=[] if step.logprobs is None else list(step.logprobs),
        )


def _message(message: Message) -> dict[str, Any]:
    data = to_openai(message)
    if message.role == "assistant":
        calls = [
            {"id": c.id, "type": "function", "name": c.name, "arguments": c.arguments_json()}
            for c in message.tool_calls
        ]
        return {
            "role": "assistant",
            "content": message.text,
            "reasoning_content": message.reasoning,
            "tool_calls": calls or None,
        }
    return data
