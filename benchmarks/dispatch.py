"""How long 64 x 8 SWE-like trajectories take under each strategy, on a virtual clock with the real engine.

Stage times in seconds: setup lognormal, median 40, sigma 0.5; 30 to 50 turns of 200 to 600 tokens, each with a tool of
0.5 to 4; grading lognormal, median 60, sigma 0.6. The server samples 40 tokens a second for one sequence and never
more than 2,400 in all. Setup and grading have 16 places each (the machines that hold sandboxes). The bound is the
greatest of work over capacity of the server, of setup and of grading, and of the longest trajectory. All is drawn by
seed.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

from skyrl_gym import Task, TextEnv, ToolCall, tool
from skyrl_gym.messages import assistant
from skyrl_gym.policy import Completion, Prompt, Sampling
from skyrl_gym.rollout import Deadlines, RolloutLimits, RolloutRequest, Runner
from skyrl_gym.rollout.virtual import run_virtual

TASKS, SAMPLES, PLACES = 64, 8, 16
ONE_RATE, ALL_RATE = 40.0, 2_400.0


def drawn(task: str, sample: int) -> dict[str, Any]:
    """What one trajectory takes."""
    chance = random.Random(f"{task}:{sample}")
    turns = chance.randint(30, 50)
    return {
        "setup": chance.lognormvariate(3.69, 0.5),
        "grade": chance.lognormvariate(4.09, 0.6),
        "tokens": [chance.randint(200, 600) for _ in range(turns)],
        "tools": [chance.uniform(0.5, 4.0) for _ in range(turns)],
    }


class Server:
    """Shares its rate among those it serves; each has at most its own. Knows how long it was busy."""

    name, renderer = "server", None

    def __init__(self) -> None:
        self.left: dict[asyncio.Future[None], float] = {}
        self.since = self.busy = 0.0
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

    def _rate(self) -> float:
        return min(ONE_RATE, ALL_RATE / len(self.left))

    def _advance(self) -> None:
        now = asyncio.get_running_loop().time()
        if self.left:
            made = (now - self.since) * self._rate()
            self.busy += now - self.since
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

    def __init__(self) -> None:
        self.setup, self.grade = asyncio.Semaphore(PLACES), asyncio.Semaphore(PLACES)
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


def requests() -> list[RolloutRequest]:
    found = []
    for task in range(TASKS):
        for sample in range(SAMPLES):
            row = {"id": f"t{task}-{sample}", **drawn(f"t{task}", sample)}
            found.append(RolloutRequest("swe", Task.from_row(row), f"t{task}", sample))
    return found


def bound(wanted: list[RolloutRequest]) -> float:
    """Seconds that no schedule can beat."""
    rows = [request.task.data for request in wanted]
    tokens = sum(sum(row["tokens"]) for row in rows)
    longest = max(r["setup"] + r["grade"] + sum(r["tokens"]) / ONE_RATE + sum(r["tools"]) for r in rows)
    shared = [sum(r["setup"] for r in rows) / PLACES, sum(r["grade"] for r in rows) / PLACES, tokens / ALL_RATE]
    return max(longest, *shared)


def measure(limits: RolloutLimits) -> tuple[float, float, int]:
    """Makespan in seconds, the share of it between first and last token that the server was busy, most live."""

    async def play() -> tuple[float, float, int]:
        server, machines = Server(), Machines()
        day = 86_400.0
        clocks = Deadlines(setup_s=day, policy_s=day, episode_s=day, grade_s=day)
        runner = Runner(server, limits=limits, deadlines=clocks, make=lambda env_id, **_: Swe(machines))
        count = 0
        async for trajectory in runner.run(requests()):
            assert trajectory.reward == 1.0
            count += 1
        assert count == TASKS * SAMPLES
        return asyncio.get_running_loop().time(), server.busy / (server.last - server.first), machines.most

    return run_virtual(play())


def main() -> None:
    least = bound(requests())
    print(f"lower bound {least:,.0f} s")
    print(f"{'':>34} {'makespan':>9} {'of bound':>9} {'busy':>6} {'live':>5} {'bounded/it':>11}")
    for places in (32, 64, 96):
        ahead = PLACES // 2
        pipeline = RolloutLimits.pipeline(setup=PLACES, run=places, grade=PLACES, ready=ahead)
        equal = pipeline.live
        slow = measure(RolloutLimits.bounded(places))
        fair = measure(RolloutLimits.bounded(equal))
        quick = measure(pipeline)
        rows = (
            (f"bounded, {places} at once", slow, 1.0),
            (f"bounded, {equal} at once", fair, slow[0] / fair[0]),
            (f"pipeline, {places} running", quick, slow[0] / quick[0]),
        )
        for name, (seconds, busy, live), ratio in rows:
            print(f"{name:>34} {seconds:>9,.0f} {least / seconds:>9.1%} {busy:>6.1%} {live:>5} {ratio:>11.2f}")
    seconds, busy, live = measure(RolloutLimits.batch(TASKS * SAMPLES))
    print(f"{'batch, all at once':>34} {seconds:>9,.0f} {least / seconds:>9.1%} {busy:>6.1%} {live:>5}")


if __name__ == "__main__":
    main()
