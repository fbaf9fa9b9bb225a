"""Ten thousand episodes at once in one process."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from skyrl_gym import Task, TextEnv, ToolCall, finish, tool
from skyrl_gym.policy import ScriptedPolicy
from skyrl_gym.rollout import Deadlines, RolloutLimits, RolloutRequest, RunMetrics, Runner

MANY = 10_000


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_ten_thousand_episodes_are_under_way_together_and_all_end() -> None:
    inside = 0
    all_inside = asyncio.Event()
    seen: list[RunMetrics] = []

    class Waiting(TextEnv):
        async def setup(self, task: Task) -> str:
            return task.id

        @tool(timeout_s=1_500)
        async def wait(self) -> Any:
            """Waits until everyone is here."""
            nonlocal inside
            inside += 1
            if inside == MANY:
                all_inside.set()
            await all_inside.wait()
            return finish()

        async def grade(self) -> float:
            return 1.0

    async def play() -> Counter[str]:
        runner = Runner(
            ScriptedPolicy(lambda prompt: ToolCall("wait")),
            limits=RolloutLimits.batch(MANY),
            deadlines=Deadlines(setup_s=1_500, policy_s=1_500),
            make=lambda env_id, **_: Waiting(),
            on_metrics=seen.append,
        )
        requests = (RolloutRequest("wait", Task(f"t{i}", {"n": i}), f"t{i}") for i in range(MANY))
        return Counter([t.task_id async for t in runner.run(requests) if t.reward == 1.0])

    assert asyncio.run(play()) == Counter(f"t{i}" for i in range(MANY))
    assert inside == MANY
    assert seen[-1].leaks == 0
    assert seen[-1].live == 0
