"""What the framework itself costs a turn: a no-op tool, a scripted policy, 1, 64 and 1,024 episodes at once.

Reported as CPU microseconds a turn, and as a ratio to the same loop written by hand (a coroutine that awaits
the tool's function and builds the same messages), measured in the same run.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from skyrl_gym import Task, TaskSet, TextEnv, ToolCall, tool
from skyrl_gym.messages import assistant, tool_result, user
from skyrl_gym.policy import ScriptedPolicy
from skyrl_gym.rollout import RolloutLimits, RolloutRequest, Runner

TURNS = 20


class NoOp(TextEnv):
    """Does nothing, `TURNS` times."""

    default_max_turns = TURNS

    def load_tasks(self, split: str) -> TaskSet:
        return TaskSet.from_rows([{"id": "t"}])

    async def setup(self, task: Task) -> str:
        return "Go."

    @tool
    async def nothing(self) -> str:
        """Does nothing."""
        return "ok"

    async def grade(self) -> float:
        return 1.0


async def ours(episodes: int, live: int) -> None:
    runner = Runner(
        ScriptedPolicy(lambda prompt: ToolCall("nothing")),
        limits=RolloutLimits(live=live, setup=live, grade=live),
        make=lambda env_id, **_: NoOp(),
    )
    requests = (RolloutRequest("noop", Task(f"t{i}", {"n": i}), f"t{i}") for i in range(episodes))
    async for trajectory in runner.run(requests):
        assert trajectory.reward == 1.0
        assert len(trajectory.turns) == TURNS


async def by_hand(episodes: int) -> None:
    async def nothing() -> str:
        return "ok"

    async def episode() -> Any:
        messages = [user("Go.")]
        for turn in range(TURNS):
            call = ToolCall("nothing", {}, f"call_{turn}")
            messages += [assistant(None, call), tool_result(call, await nothing())]
        return messages

    await asyncio.gather(*(episode() for _ in range(episodes)))


def cpu(work: Any) -> float:
    started = time.process_time()
    asyncio.run(work)
    return time.process_time() - started


def main() -> None:
    cpu(ours(8, 8))  # warm up
    print(f"{'episodes at once':>18} {'CPU us a turn':>14} {'by hand':>9} {'ratio':>7}")
    for live in (1, 64, 1_024):
        episodes = max(64, live)
        took = cpu(ours(episodes, live)) / (episodes * TURNS) * 1e6
        bare = cpu(by_hand(episodes)) / (episodes * TURNS) * 1e6
        print(f"{live:>18} {took:>14.0f} {bare:>9.1f} {took / bare:>7.1f}")


if __name__ == "__main__":
    main()
