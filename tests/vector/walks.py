"""Environments whose tools do, succeed, fail and wait as their calls say."""

import asyncio
import threading
import time
from collections import Counter
from typing import Any

from skyrl_gym import Grade, Task, TaskSet, TextEnv, ToolCall, finish, tool
from skyrl_gym.errors import EnvError, SandboxLost, SetupError
from skyrl_gym.tools import ToolResult


class Walk(TextEnv):
    """Ends when told to, or after three turns; `world` counts what is open. A task may say that setup fails."""

    default_max_turns = 3
    world: Counter[str]

    def load_tasks(self, split: str) -> TaskSet:
        return TaskSet.from_generator(lambda i: {"id": f"walk-{i}", "worth": i / 10}, 50)

    async def setup(self, task: Task) -> str:
        self.world["opened"] += 1
        match task.data.get("setup"):
            case "fail":
                raise SetupError("no ground")
            case "hang":
                await asyncio.sleep(3_600)
            case "bug":
                raise TypeError("planted in setup")
        return f"You stand at {task.id}."

    @tool
    async def walk(self, steps: int) -> ToolResult:
        """Walks."""
        return ToolResult(f"walked {steps}", reward=steps / 100)

    @tool
    async def arrive(self) -> Any:
        """Ends."""
        return finish("there")

    @tool
    async def fall(self, how: str) -> str:
        """Fails."""
        match how:
            case "lost":
                raise SandboxLost("the ground is gone")
            case "env":
                raise EnvError("night has come")
            case "bug":
                raise TypeError("planted in a tool")
            case "hang":
                await asyncio.sleep(3_600)
        return how

    @tool(timeout_s=None)
    async def wait(self, seconds: float) -> str:
        """Waits."""
        await asyncio.sleep(seconds)
        return f"waited {seconds}"

    @tool
    def block(self, seconds: float) -> str:
        """Waits in a thread."""
        time.sleep(seconds)
        return f"blocked {seconds}"

    async def grade(self) -> Grade:
        return Grade(float(self.task.data.get("worth", 1.0)), {"length": float(self._turns)})

    async def teardown(self) -> None:
        self.world["closed"] += 1


class Gate(TextEnv):
    """Each call waits until it is let through, from whichever thread."""

    default_max_turns = 1_000

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.open: dict[int, asyncio.Event] = {}
        self.entered = threading.Semaphore(0)

    def load_tasks(self, split: str) -> TaskSet:
        return TaskSet.from_rows([{"id": "gate"}])

    async def setup(self, task: Task) -> str:
        return "A gate."

    @tool(timeout_s=None)
    async def say(self, token: int) -> str:
        """Says it on the other side."""
        event = self.open[token] = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self.entered.release()
        await event.wait()
        return f"token {token}"

    def let_through(self, token: int) -> None:
        assert self.entered.acquire(timeout=60)
        self.loop.call_soon_threadsafe(self.open[token].set)

    async def grade(self) -> float:
        return 0.0


def walk(steps: int) -> ToolCall:
    return ToolCall("walk", {"steps": steps})


def fall(how: str) -> ToolCall:
    return ToolCall("fall", {"how": how})


ARRIVE = ToolCall("arrive")
