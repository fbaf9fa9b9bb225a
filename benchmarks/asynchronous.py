"""Synchronous against asynchronous training: wall seconds a step, with a simulated server and a simulated step.

The server answers after a time that is drawn from a long-tailed distribution, however many requests it has; the
training step is a pause. Streams, runner, environment and sources are the real ones. As in `skyrl train`, as many
environments are open at once whatever the staleness. The overlap is the longer of the two phases: what a step would
take if they went on side by side, each as long as when it has to wait for its slowest trajectory.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from skyrl_gym import Task, TaskSet, TextEnv, ToolCall, tool
from skyrl_gym.background import BackgroundLoop
from skyrl_gym.messages import assistant
from skyrl_gym.policy import Completion, Prompt, Sampling
from skyrl_gym.rollout import RolloutLimits, Runner
from skyrl_gym.trainer.async_ import AsyncSource
from skyrl_gym.trainer.source import SyncSource
from skyrl_gym.trainer.stream import Ingredient, TaskStream

STEPS, GROUPS, SIZE, TURNS, MEDIAN_S, STEP_S = 12, 4, 8, 5, 0.06, 0.6


class Calls(TextEnv):
    """A number of calls of a tool."""

    def load_tasks(self, split: str) -> TaskSet:
        return TaskSet.from_rows([{"id": f"t{i}"} for i in range(32)])

    async def setup(self, task: Task) -> str:
        return "Go."

    @tool
    async def nothing(self, number: int) -> str:
        """Does nothing.

        Args:
            number: of the call.
        """
        return str(number)

    async def grade(self) -> float:
        return 1.0


class Server:
    """Answers with a call after a while."""

    def __init__(self) -> None:
        self.name, self.renderer, self.version = "simulated", None, 0

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        draws = random.Random(sampling.seed)
        await asyncio.sleep(min(10 * MEDIAN_S, draws.lognormvariate(0.0, 0.8) * MEDIAN_S))
        return Completion("", message=assistant(None, ToolCall("nothing", {"number": draws.randrange(10**6)})))

    def load_weights(self, weights: Any, version: int) -> None:
        self.version = version

    async def aclose(self) -> None:
        pass


def seconds_a_step(staleness: int, step_s: float) -> float:
    loop, server = BackgroundLoop("benchmark"), Server()
    live = GROUPS * SIZE
    runner = Runner(
        server,
        Sampling(seed=0),
        limits=RolloutLimits(live=live, setup=live, grade=live),
        make=lambda env_id, **_: Calls(max_turns=TURNS),
    )
    stream = TaskStream([Ingredient("calls", Calls().tasks)], GROUPS)
    source: Any = SyncSource(stream, SIZE, runner, server, loop)
    if staleness:
        source = AsyncSource(stream, SIZE, GROUPS, staleness, runner, server, loop)
    started = time.perf_counter()
    for version in range(STEPS):
        source.sync({}, version)
        source.draw(GROUPS)
        time.sleep(step_s)
    took = (time.perf_counter() - started) / STEPS
    source.close()
    loop.close()
    return took


def main() -> None:
    rollouts = seconds_a_step(0, 0.0)
    print(f"{GROUPS * SIZE} trajectories of {TURNS} turns: {rollouts:.2f} s of rollouts, {STEP_S:.2f} s of training")
    whole = seconds_a_step(0, STEP_S)
    overlap = max(rollouts, STEP_S)
    print(f"{'staleness':>10} {'s a step':>9} {'against synchronous':>20} {'against the overlap':>20}")
    for staleness in (0, 1, 2, 4):
        took = whole if staleness == 0 else seconds_a_step(staleness, STEP_S)
        print(f"{staleness:>10} {took:>9.2f} {whole / took:>20.2f} {took / overlap:>20.2f}")


if __name__ == "__main__":
    main()
