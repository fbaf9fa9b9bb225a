"""Trajectories with tokens, drawn at random: several contexts, missing log-probabilities, exclusions."""

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym import StopReason, ToolCall, assistant, user
from skyrl_gym.evaluate import Run, open_run
from skyrl_gym.evaluate.runs import write_json
from skyrl_gym.messages import system, tool_result
from skyrl_gym.rollout import Journal, Trajectory, Transition, Turn


def drawn(seed: int, **fields: Any) -> Trajectory:
    """A trajectory of one to four turns; every turn after the first may rewrite the context."""
    rng = random.Random(seed)

    def ids(most: int) -> tuple[int, ...]:
        return tuple(rng.randint(3, 399) for _ in range(rng.randint(1, most)))

    known = rng.random() < 0.8
    turns = []
    for number in range(rng.randint(1, 4)):
        call = ToolCall("look", {"at": f"{number} 漢"}, f"c{number}")
        sampled = ids(6)
        logprobs = tuple(-rng.random() for _ in sampled) if known else None
        fork = number == 0 or (rng.random() < 0.3)
        turns.append(
            Turn(
                assistant(f"I look ({number}).", call),
                (user("You remember: nothing."),) if rng.random() < 0.2 else (tool_result(call, "a stone"),),
                Transition(ids(8), sampled, logprobs, policy_version=number, fork=fork),
            )
        )
        turns[-1] = _edited(turns[-1])
    values: dict[str, Any] = {
        "env_id": "look-v0",
        "task_id": f"t{seed % 3}",
        "task_hash": f"h{seed % 3}",
        "group": f"t{seed % 3}",
        "sample": seed // 3,
        "stop_reason": StopReason.DONE,
        "opening": (system("You look."), user("What is there?")),
        "turns": _joined(turns),
        "reward": rng.choice([0.0, 0.5, 1.0]),
        "metrics": {"looks": float(len(turns))},
        "policy": "model",
    }
    return Trajectory(**{**values, **fields})


def _edited(turn: Turn) -> Turn:
    return replace(turn, context_edit=turn.observations[0].role == "user")


def _joined(turns: list[Turn]) -> tuple[Turn, ...]:
    """After a context edit the next prompt is whole, as the tracker would have it."""
    out = [turns[0]]
    for before, turn in pairwise(turns):
        assert turn.transition is not None
        fork = turn.transition.fork or before.context_edit
        out.append(replace(turn, transition=replace(turn.transition, fork=fork)))
    return tuple(out)


def lost(**fields: Any) -> Trajectory:
    """One whose sandbox died."""
    return drawn(1, stop_reason=StopReason.SANDBOX_LOST, reward=None, sample=99, **fields)


def without_ids(**fields: Any) -> Trajectory:
    """One by a policy that answers in messages."""
    turns = (Turn(assistant("It is a stone.")),)
    return drawn(2, turns=turns, sample=98, **fields)


@pytest.fixture(scope="session")
def make() -> Any:
    """What the tests of this folder share."""

    class Tools:
        drawn, lost, without_ids, run = map(staticmethod, (drawn, lost, without_ids, make_run))

    return Tools


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Twelve judged trajectories, one lost, one without token ids."""
    return make_run(tmp_path / "run", [*map(drawn, range(12)), lost(), without_ids()])


def make_run(folder: Path, trajectories: list[Trajectory]) -> Run:
    write_json(folder / "run.json", {"kind": "eval", "config": {"env_id": "look-v0"}})
    with Journal(folder / "trajectories.jsonl") as journal:
        for trajectory in trajectories:
            journal.append(trajectory)
    return open_run(folder)
