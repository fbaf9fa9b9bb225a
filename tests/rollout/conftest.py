"""A small environment whose every stage can be made to fail, and a policy that plays it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from skyrl_gym import Task, TaskSet, TextEnv, ToolCall, finish, tool
from skyrl_gym.errors import EnvError, GradeError, SetupError
from skyrl_gym.policy import ScriptedPolicy


class FaultyEnv(TextEnv):
    """`task.data` says what goes wrong and where: {"fault": kind, "stage": stage}; counts what is open."""

    live = 0
    most_live = 0
    opened = 0
    closed = 0

    def load_tasks(self, split: str) -> TaskSet:
        return TaskSet.from_rows([{"id": "t"}])

    async def setup(self, task: Task) -> str:
        cls = type(self)
        cls.opened += 1
        cls.live += 1
        cls.most_live = max(cls.most_live, cls.live)
        await self._fault("setup", SetupError)
        return "Count to two."

    @tool
    async def count(self) -> str:
        """Counts."""
        await self._fault("run", EnvError)
        return "one"

    @tool
    async def done(self) -> Any:
        """Ends."""
        return finish()

    async def grade(self) -> float:
        await self._fault("grade", GradeError)
        return float(self.task.data.get("reward", 1.0))

    async def teardown(self) -> None:
        type(self).live -= 1
        type(self).closed += 1
        await self._fault("teardown", EnvError)

    async def _fault(self, stage: str, declared: type[Exception]) -> None:
        if self.task.data.get("stage") != stage:
            return
        match self.task.data["fault"]:
            case "raise":
                raise declared("planted")
            case "bug":
                raise TypeError("planted bug")
            case "hang":
                await asyncio.sleep(3_600)
            case "timeout_error":
                raise TimeoutError("from user code")


@pytest.fixture
def env_class() -> Iterator[type[FaultyEnv]]:
    class Fresh(FaultyEnv):
        pass

    yield Fresh


@pytest.fixture
def player() -> ScriptedPolicy:
    def answer(prompt: Any) -> ToolCall:
        return ToolCall("count") if len(prompt.messages) == 1 else ToolCall("done")

    return ScriptedPolicy(answer)
