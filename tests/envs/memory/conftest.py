"""Shared by the tests of the memory suite."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import strategies as st

from skyrl_gym.env import TextEnv
from skyrl_gym.envs.memory.env import MemoryEnv
from skyrl_gym.envs.memory.families import FAMILIES
from skyrl_gym.envs.memory.needles import VALUES
from skyrl_gym.messages import ToolCall
from skyrl_gym.spaces import Action
from skyrl_gym.tasks import Task


@pytest.fixture(scope="session")
def settings_of_envs() -> st.SearchStrategy[dict[str, Any]]:
    """Constructor settings of every kind."""
    return st.fixed_dictionaries(
        {
            "families": st.lists(st.sampled_from(sorted(FAMILIES)), min_size=1, max_size=3),
            "values": st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=2),
            "hops": st.lists(st.integers(1, 4), min_size=1, max_size=2),
            "document_words": st.integers(1, 600),
            "chunk_words": st.integers(1, 200),
            "memory_words": st.integers(1, 60),
            "split": st.sampled_from(["train", "test"]),
            "worked_example": st.booleans(),
        }
    )


@pytest.fixture
def env() -> Iterator[TextEnv]:
    """An environment over one document of three sections."""
    made = MemoryEnv(memory_words=5, chunk_words=3)
    made.reset(
        options={"task": {"document": "One two. Three four five.\n\nSix.", "question": "What?", "answers": ["two"]}}
    )
    yield made
    made.close()


class Player:
    """Plays scripts and remembers every result."""

    def __init__(self, env: TextEnv) -> None:
        self.env = env

    def play(self, task: Task | dict[str, Any], actions: Iterable[Action]) -> tuple[float, dict[str, Any]]:
        """The reward and the last info; an episode that the script leaves open is graded as it stands."""
        self.env.reset(options={"task": task})
        info: dict[str, Any] = {}
        reward, ended = 0.0, False
        for action in actions:
            assert not ended, "the script goes on after the end of the episode"
            _, step_reward, terminated, truncated, info = self.env.step(action)
            reward += step_reward
            ended = terminated or truncated
        return reward, info


@pytest.fixture(scope="session")
def player() -> type[Player]:
    return Player


@pytest.fixture(scope="session")
def note() -> Any:
    """A call that rewrites the memory."""
    return lambda text: ToolCall("update_memory", {"memory": text})


@pytest.fixture(scope="session")
def reply() -> Any:
    """A call that answers."""
    return lambda text: ToolCall("answer", {"text": text})
