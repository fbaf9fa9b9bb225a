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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from skyrl_gym import Task, TaskSet, TextEnv, ToolCall, tool
from skyrl_gym.background import BackgroundLoop
from skyrl_gym.messages import assistant
from skyrl_gym.policy import Completion, Prompt, Sampling
from skyrl_gym.rollout import RolloutLimits, Runner
from skyrl_gym.trainer.async_ import AsyncSource
from skyrl_gym.trainer.source import SyncSource, TrainedPolicy
from skyrl_gym.trainer.stream import Ingredient, TaskStream

MEDIAN_S, STEP_S = 0.06, 0.6


@dataclass(frozen=True)
class Work:
    """Steps of `groups` of `size` trajectories of `turns` turns, each turn of at most `max_tokens`."""

    steps: int = 12
    groups: int = 4
    size: int = 8
    turns: int = 5
    max_tokens: int = 16


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


def seconds_a_step(
    work: Work,
    staleness: int,
    step_s: float,
    open_policy: Callable[[BackgroundLoop], TrainedPolicy] = lambda loop: Server(),
    weights: Mapping[str, Any] = {},
) -> float:
    """Wall time of a step; the first one counts."""
    loop = BackgroundLoop("benchmark")
    policy = open_policy(loop)
    live = work.groups * work.size
    runner = Runner(
        policy,
        Sampling(seed=0, max_tokens=work.max_tokens),
        limits=RolloutLimits(live=live, setup=live, grade=live),
        make=lambda env_id, **_: Calls(max_turns=work.turns, max_invalid=work.turns),
    )
    stream = TaskStream([Ingredient("calls", Calls().tasks)], work.groups)
    source: Any = SyncSource(stream, work.size, runner, policy, loop)
    if staleness:
        source = AsyncSource(stream, work.size, work.groups, staleness, runner, policy, loop)
    started = time.perf_counter()
    for version in range(work.steps):
        source.sync(weights, version)
        source.draw(work.groups)
        time.sleep(step_s)
    took = (time.perf_counter() - started) / work.steps
    source.close()
    loop.run(policy.aclose())
    loop.close()
    return took


def compare(rollouts: float, step_s: float, seconds: Mapping[int, float]) -> None:
    """Prints seconds a step by staleness."""
    overlap = max(rollouts, step_s)
    print(f"{'staleness':>10} {'s a step':>9} {'against synchronous':>20} {'against the overlap':>20}")
    for staleness, took in seconds.items():
        print(f"{staleness:>10} {took:>9.2f} {seconds[0] / took:>20.2f} {took / overlap:>20.2f}")


def main() -> None:
    work = Work()
    rollouts = seconds_a_step(work, 0, 0.0)
    print(f"{work.groups * work.size} trajectories of {work.turns} turns: {rollouts:.2f} s of rollouts")
    print(f"a training step of {STEP_S:.2f} s")
    compare(rollouts, STEP_S, {staleness: seconds_a_step(work, staleness, STEP_S) for staleness in (0, 1, 2, 4)})


if __name__ == "__main__":
    main()
