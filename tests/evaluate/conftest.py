"""Hand-made trajectories, and a small environment whose machinery fails while a file says so."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from skyrl_gym import registration
from skyrl_gym.errors import StopReason
from skyrl_gym.messages import ToolCall, assistant, tool_result, user
from skyrl_gym.rollout import Trajectory, Turn

GUESS = '''
"""An environment for tests: say what the task wants."""
from pathlib import Path
from skyrl_gym import Grade, Probe, TextEnv, ToolCall, finish, tool
from skyrl_gym.errors import GradeError, SandboxLost, TaskError


class GuessEnv(TextEnv):
    """Answer with the word that the task holds."""

    def setup(self, task):
        self.given = None
        if Path(task.data.get("lost_while", "/nowhere")).exists():
            raise SandboxLost("the machine is gone")
        return f"Task {task.id}: what is the word?"

    @tool
    def look(self):
        """Shows a hint."""
        return self.task.data["hint"]

    @tool
    def answer(self, word: str):
        """Answers."""
        self.given = word
        return finish()

    def grade(self):
        if Path(self.task.data.get("judge_down_while", "/nowhere")).exists():
            raise GradeError("402 payment required")
        return Grade(float(self.given == self.task.data["word"]), artifacts={"word": str(self.given)})

    async def probes(self, task):
        if "word" not in task.data:
            raise TaskError(f"task {task.id} has no word")
        say = lambda word: [ToolCall("look"), ToolCall("answer", {"word": word})]
        gold = task.data.get("said to be", task.data["word"])
        return {"gold": Probe(say(gold), least=1.0), "hint": Probe(say(task.data["hint"]), most=0.0)}
'''

Make = Callable[..., Trajectory]


@pytest.fixture
def guess(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The id of the environment; what is registered and imported is gone after the test."""
    folder = tmp_path / "registry"
    folder.mkdir()
    monkeypatch.setattr(registration, "_ENTRIES", dict(registration._ENTRIES))
    monkeypatch.setattr(sys, "path", list(sys.path))
    (folder / "guess_for_test.py").write_text(GUESS)
    (folder / "registry.yaml").write_text("guess-v0: {entry_point: 'guess_for_test:GuessEnv', summary: Guesses.}\n")
    registration.register_file(folder / "registry.yaml")
    yield "guess-v0"
    gym.registry.pop("guess-v0", None)
    sys.modules.pop("guess_for_test", None)


@pytest.fixture
def make() -> Make:
    """Makes a trajectory of two turns; give it the fields that matter to the test."""
    return make_trajectory


def make_trajectory(reward: float | None = 1.0, task: str = "a", sample: int = 0, **fields: Any) -> Trajectory:
    call = ToolCall("look", {}, "c1")
    turns = (
        Turn(assistant("I look.", call), (tool_result(call, "a hint"),), seconds={"policy": 0.2, "tools": 0.1}),
        Turn(assistant(None, ToolCall("answer", {"word": "x"}, "c2"))),
    )
    values: dict[str, Any] = {
        "env_id": "guess-v0",
        "task_id": f"task-{task}",
        "task_hash": f"hash-{task}",
        "group": task,
        "sample": sample,
        "stop_reason": StopReason.SANDBOX_LOST if reward is None else StopReason.DONE,
        "opening": (user("What is the word?"),),
        "turns": turns,
        "reward": reward,
        "policy": "model",
        "seconds": {"setup": 0.5, "run": 1.0, "grade": 0.1},
    }
    return Trajectory(**{**values, **fields})
