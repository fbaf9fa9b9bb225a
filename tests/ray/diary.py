"""An environment whose task says what happens in it, where workers can load it."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle

from skyrl_gym import Task, TextEnv, ToolCall, finish, tool
from skyrl_gym.errors import EnvError, TaskError
from skyrl_gym.policy import ScriptedPolicy
from skyrl_gym.rollout import RolloutRequest

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Diary(TextEnv):
    """Two turns. Each opening and closing is a file in `folder`; `slow_s` seconds a turn."""

    def __init__(self, folder: str, slow_s: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.folder = Path(folder)
        self.slow_s = slow_s

    async def setup(self, task: Task) -> str:
        self.mark = f"{task.id}-{os.getpid()}-{time.monotonic_ns()}"
        (self.folder / f"{self.mark}.opened").touch()
        if task.data.get("at") == "setup":
            raise TaskError("field 'question' is missing")
        return task.id

    @tool(timeout_s=None)
    async def work(self) -> str:
        """Works."""
        await asyncio.sleep(self.slow_s)
        first = self.folder / f"{self.task.id}.first"
        match self.task.data.get("at"):
            case "bug":
                raise TypeError("planted bug")
            case "odd":
                raise Odd("one", 2)
            case "kill" if not first.exists():
                first.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            case "once" if not first.exists():
                first.touch()
                raise EnvError("not yet")
            case "for ever":
                await asyncio.sleep(3_600)
        return f"node {ray.get_runtime_context().get_node_id()}"

    @tool
    async def done(self) -> Any:
        """Ends."""
        return finish()

    async def grade(self) -> float:
        return float(self.task.data.get("worth", 1.0))

    async def teardown(self) -> None:
        (self.folder / f"{self.mark}.closed").touch()


class Odd(Exception):
    """Can be pickled, and not loaded again."""

    def __init__(self, one: str, two: int) -> None:
        super().__init__(f"{one} and {two}")


def make_policy() -> ScriptedPolicy:
    return ScriptedPolicy(lambda prompt: ToolCall("work" if len(prompt.messages) == 1 else "done"))


def make_diary(env_id: str, **kwargs: Any) -> Diary:
    return Diary(**kwargs)


def requests(rows: list[dict[str, Any]], samples: int = 1) -> list[RolloutRequest]:
    tasks = [Task.from_row({"id": f"t{i}", **row}) for i, row in enumerate(rows)]
    return [RolloutRequest("diary", task, task.id, sample) for task in tasks for sample in range(samples)]


def workers_alive() -> int:
    from ray._private.state import actors  # the public listing needs Ray's dashboard

    return sum(1 for actor in actors().values() if actor["State"] != "DEAD")


def wait_until(holds: Callable[[], bool], within_s: float = 60) -> None:
    until = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until, "it never came to that"
        time.sleep(0.1)
