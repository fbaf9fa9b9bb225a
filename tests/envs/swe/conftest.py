"""An environment, where the real tasks are, and what the suite needs."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium as gym
import pytest

from skyrl_gym import TaskSet, ToolCall
from skyrl_gym.sandbox import bubblewrap_problem, default_ledger

Play: TypeAlias = Callable[..., tuple[float, dict[str, Any]]]


@pytest.fixture(scope="session", autouse=True)
def _needs_bubblewrap() -> None:
    if problem := bubblewrap_problem():
        pytest.skip(problem)


@pytest.fixture(scope="module")
def env() -> Iterator[Any]:
    env = gym.make("skyrl/swe-v0").unwrapped
    yield env
    env.close()
    assert default_ledger().live == 0


@pytest.fixture(scope="module")
def play(env: Any) -> Play:
    """Plays an episode of a task; gives its reward and metrics."""

    def run(task: Any, *actions: ToolCall) -> tuple[float, dict[str, Any]]:
        env.reset(options={"task": task})
        for action in (*actions, ToolCall("submit")):
            _, reward, terminated, _, info = env.step(action)
        assert terminated
        return reward, info["metrics"]

    return run


@pytest.fixture(scope="session")
def real_tasks() -> TaskSet:
    beside = Path(__file__).resolve().parents[4] / "shared" / "data" / "swe_pypi.jsonl"
    path = Path(os.environ.get("SKYRL_SWE_PYPI") or beside)
    if not path.is_file():
        pytest.skip("the file of real tasks is not here; name it in SKYRL_SWE_PYPI")
    return TaskSet.from_jsonl(path)
