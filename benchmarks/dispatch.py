"""How long 64 x 8 SWE-like trajectories take under each strategy, on a virtual clock with the real engine.

Stage times in seconds: setup lognormal, median 40, sigma 0.5; 28 to 52 turns (a task's own mean, and 4 more or less) of
200 to 600 tokens, each with a tool of 0.5 to 4; grading lognormal, median 60, sigma 0.6. The server samples 40 tokens a
second for one sequence and never more than 2,400 in all. Setup and grading have 24 places each, the machines that
prepare sandboxes and run tests, whatever the strategy. `weight` makes setup and grading, and the machines for them, so
many times as large: what a pipeline gains depends on the share of time that the policy has no part in. All is drawn by
seed.

The bound is the greatest of four: the server's work, its idle time at both ends included (nobody can sample before
enough is set up, nor while the last are graded); the work of all trajectories alone over the places for them; setup
and grading over their machines; the longest trajectory.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from skyrl_gym import Task, TextEnv, ToolCall, tool
from skyrl_gym.messages import assistant
from skyrl_gym.policy import Completion, Prompt, Sampling
from skyrl_gym.rollout import Deadlines, RolloutLimits, RolloutRequest, Runner
from skyrl_gym.rollout.schedule import Estimates
from skyrl_gym.rollout.virtual import run_virtual

TASKS, SAMPLES, MACHINES = 64, 8, 24
ONE_RATE, ALL_RATE = 40.0, 2_400.0


@dataclass(frozen=True)
class Work:
    """What all trajectories take, setup and grading `weight` times as much as in this module's description."""

    weight: float

    @property
    def machines(self) -> int:
        """Places for setup, and as many for grading."""
        return round(MACHINES * self.weight)

    def drawn(self, task: int, sample: int) -> dict[str, Any]:
        """What one trajectory takes."""
        chance = random.Random(f"{task}:{sample}")
        turns = random.Random(task).randint(32, 48) + chance.randint(-4, 4)
        return {
            "setup": self.weight * chance.lognormvariate(3.69, 0.5),
            "grade": self.weight * chance.lognormvariate(4.09, 0.6),
            "tokens": [chance.randint(200, 600) for _ in range(turns)],
            "tools": [chance.uniform(0.5, 4.0) for _ in range(turns)],
        }

    def requests(self) -> list[RolloutRequest]:
        """All of them."""
        return [
            RolloutRequest(
                "swe", Task.from_row({"id": f"{task}-{sample}", **self.drawn(task, sample)}), f"{task}", sample
            )
            for task in range(TASKS)
            for sample in range(SAMPLES)
        ]

    def seen(self) -> Estimates:
        """What a runner knows that has played other samples of the same tasks before."""
        estimates = Estimates()
        for number, request in enumerate(self.requests()):
            for sample in range(SAMPLES, 2 * SAMPLES):
                estimates.learn(request, {"alone": sum(alone(self.drawn(number // SAMPLES, sample)))})
        return estimates


def alone(row: dict[str, Any]) -> tuple[float, float, float]:
    """Seconds of setup, run and grading when nobody else is there."""
    return row["setup"], sum(row["tokens"]) / ONE_RATE + sum(row["tools"]), row["grade"]


def bound(work: Work, limits: RolloutLimits) -> float:
    """Seconds that no schedule within these limits can beat, also one that knows all times."""
    rows = [request.task.data for request in work.requests()]
    setups, runs, grades = zip(*map(alone, rows), strict=True)
    tokens = sum(sum(row["tokens"]) for row in rows)
    # The k-th to be set up is not ready before its time; so many sequences are then missing at the server or at the
    # places to run. The same backwards from the end, for grading.
    ends = list(zip(_earliest(setups, work.machines), _earliest(grades, work.machines), strict=True))
    idle = list(accumulate(map(sum, ends)))
    server = (tokens + ONE_RATE * idle[int(ALL_RATE / ONE_RATE) - 1]) / ALL_RATE
    running = (sum(runs) + idle[limits.running - 1]) / limits.running
    living = (sum(setups) + sum(runs) + sum(grades)) / limits.live
    machines = max(sum(setups), sum(grades)) / work.machines
    return max(server, running, living, machines, *map(sum, zip(setups, runs, grades, strict=True)))


def _earliest(seconds: tuple[float, ...], machines: int) -> Iterator[float]:
    """Before when the first, the second, ... of these cannot be done: the shortest first, spread evenly."""
    shortest = sorted(seconds)
    return (max(one, total / machines) for one, total in zip(shortest, accumulate(shortest), strict=True))


class Server:
    """Shares its rate among those it serves; each has at most its own. Knows what it made, and when."""

    name, renderer = "server", None

    def __init__(self) -> None:
        self.left: dict[asyncio.Future[None], float] = {}
        self.since = self.made = 0.0
        self.first = self.last = 0.0
        self.timer: asyncio.TimerHandle | None = None

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        tokens = float(prompt.messages[-1].text.split()[-1])
        self._advance()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.left[done] = tokens
        self._plan()
        await done
        return Completion("", message=assistant(None, ToolCall("work")))

    async def aclose(self) -> None:
        pass

    @property
    def used(self) -> float:
        """The share of what it could have made between its first token and its last."""
        return self.made / ALL_RATE / (self.last - self.first)

    def _rate(self) -> float:
        return min(ONE_RATE, ALL_RATE / len(self.left))

    def _advance(self) -> None:
        now = asyncio.get_running_loop().time()
        if self.left:
            made = (now - self.since) * self._rate()
            self.made += made * len(self.left)
            self.first, self.last = self.first or self.since, now
            self.left = {done: tokens - made for done, tokens in self.left.items()}
        self.since = now

    def _plan(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.left:
            wait = max(0.0, min(self.left.values()) / self._rate())
            self.timer = asyncio.get_running_loop().call_later(wait, self._finish)

    def _finish(self) -> None:
        self._advance()
        for done in [done for done, tokens in self.left.items() if tokens < 1e-6]:
            del self.left[done]
            done.set_result(None)
        self._plan()


class Machines:
    """The places where sandboxes are prepared and tests are run: shared by all, whatever the strategy."""

    def __init__(self, places: int) -> None:
        self.setup, self.grade = asyncio.Semaphore(places), asyncio.Semaphore(places)
        self.live = self.most = 0


class Swe(TextEnv):
    """Takes the time that was drawn for it."""

    default_max_turns = 1_000

    def __init__(self, machines: Machines) -> None:
        super().__init__(max_repeats=10_000)
        self.machines = machines

    async def setup(self, task: Task) -> str:
        self.machines.live += 1
        self.machines.most = max(self.machines.most, self.machines.live)
        self.turn = 0
        async with self.machines.setup:
            await asyncio.sleep(task.data["setup"])
        return f"go {task.data['tokens'][0]}"

    @tool
    async def work(self) -> Any:
        """Works."""
        from skyrl_gym import finish

        await asyncio.sleep(self.task.data["tools"][self.turn])
        self.turn += 1
        tokens = self.task.data["tokens"]
        return finish() if self.turn == len(tokens) else f"next {tokens[self.turn]}"

    async def grade(self) -> float:
        async with self.machines.grade:
            await asyncio.sleep(self.task.data["grade"])
        return 1.0

    async def teardown(self) -> None:
        self.machines.live -= 1


def measure(work: Work, limits: RolloutLimits, estimates: Estimates | None = None) -> tuple[float, float, int]:
    """Makespan in seconds, how much of the server was used between its first and last token, most live."""

    async def play() -> tuple[float, float, int]:
        server, machines = Server(), Machines(work.machines)
        week = 604_800.0
        runner = Runner(
            server,
            limits=limits,
            deadlines=Deadlines(setup_s=week, policy_s=week, episode_s=week, grade_s=week),
            make=lambda env_id, **_: Swe(machines),
            estimates=estimates or Estimates(),
        )
        rewards = [trajectory.reward async for trajectory in runner.run(work.requests())]
        assert rewards == [1.0] * TASKS * SAMPLES
        return asyncio.get_running_loop().time(), server.used, machines.most

    return run_virtual(play())


def main() -> None:
    print(f"{'':>46} {'makespan':>9} {'of bound':>9} {'used':>6} {'live':>5} {'bounded/it':>11}")
    for weight in (1.0, 2.5, 4.0):
        work = Work(weight)
        setups, runs, grades = zip(*(alone(request.task.data) for request in work.requests()), strict=True)
        share = (sum(setups) + sum(grades)) / sum(runs)
        print(f"setup and grading take {share:.2f} times what a run alone takes")
        for places in (48, 64, 96):
            _compare(work, places)
        _show("batch, all at once", work, RolloutLimits.batch(TASKS * SAMPLES))


def _compare(work: Work, places: int) -> None:
    pipeline = RolloutLimits.pipeline(setup=work.machines, run=places, grade=work.machines, ready=work.machines // 2)
    slow = _show(f"bounded, {places} at once", work, RolloutLimits.bounded(places))
    _show(f"bounded, {pipeline.live} at once", work, RolloutLimits.bounded(pipeline.live), slow)
    _show(f"pipeline, {places} running", work, pipeline, slow)
    _show(f"pipeline, {places} running, tasks seen before", work, pipeline, slow, work.seen())


def _show(
    name: str, work: Work, limits: RolloutLimits, slow: float | None = None, estimates: Estimates | None = None
) -> float:
    seconds, used, live = measure(work, limits, estimates)
    ratio = f"{slow / seconds:.2f}" if slow else ""
    share = bound(work, limits) / seconds
    print(f"{name:>46} {seconds:>9,.0f} {share:>9.1%} {used:>6.1%} {live:>5} {ratio:>11}", flush=True)
    return seconds


if __name__ == "__main__":
    main()
