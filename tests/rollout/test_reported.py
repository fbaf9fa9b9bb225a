"""Faults that other systems were reported for; each test names the reports."""

import asyncio
import gc
import threading
from collections import Counter
from contextlib import aclosing
from pathlib import Path
from typing import Any

from skyrl_gym import Task, TextEnv, ToolCall, finish, tool
from skyrl_gym.policy import Prompt, ScriptedPolicy
from skyrl_gym.rollout import Journal, RolloutLimits, RolloutRequest, RunMetrics, Runner, Trajectory, read_journal
from skyrl_gym.rollout.virtual import run_virtual
from tests.rollout.world import STAGES, World, requests_of, runner_in, tasks_of

CROWD = 32


class Quick(TextEnv):
    """Over after one turn."""

    def __init__(self, reward: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.reward = reward

    async def setup(self, task: Task) -> str:
        return task.id

    @tool
    async def end(self) -> Any:
        """Ends."""
        return finish(f"{self.task.id} of {self.reward:g}")

    async def grade(self) -> float:
        return self.reward


def ends(prompt: Prompt) -> ToolCall:
    return ToolCall("end")


def crowd(size: int) -> list[RolloutRequest]:
    return [RolloutRequest("quick", Task(f"t{i}", {"n": i}), f"t{i}") for i in range(size)]


def test_tools_that_block_hold_up_neither_each_other_nor_the_loop() -> None:
    """TRL's asynchronous trainer, rllm#494: a synchronous reset or tool stops the event loop for everyone."""
    together = threading.Barrier(CROWD + 1)  # passed only if all are inside at once, and the loop still turns
    loops_own: list[bool] = []

    class Blocking(Quick):
        def setup(self, task: Task) -> str:  # type: ignore[override]
            together.wait(60)
            return task.id

        @tool
        def end(self) -> Any:
            """Blocks its thread."""
            together.wait(60)
            return finish()

    async def play() -> list[Trajectory]:
        limits = RolloutLimits.batch(CROWD)
        runner = Runner(ScriptedPolicy(ends), limits=limits, make=lambda env_id, **_: Blocking())
        loop_is_free = asyncio.create_task(keep_the_loop_busy())
        found = [t async for t in runner.run(crowd(CROWD))]
        await loop_is_free
        return found

    async def keep_the_loop_busy() -> None:
        for _ in range(2):
            while together.n_waiting < CROWD:  # noqa: ASYNC110 - that the loop turns is what is tested
                await asyncio.sleep(0.001)
            loops_own.append(True)
            await asyncio.to_thread(together.wait, 60)

    found = asyncio.run(play())
    assert [t.reward for t in found] == [1.0] * CROWD
    assert len(loops_own) == 2


def test_thousands_of_small_results_all_arrive(tmp_path: Path) -> None:
    """verifiers#951: a queue at its high-water mark drops results."""
    wanted = crowd(4_000)

    async def play(journal: Journal) -> Counter[str]:
        limits = RolloutLimits.bounded(512)
        runner = Runner(ScriptedPolicy(ends), limits=limits, journal=journal, make=lambda env_id, **_: Quick())
        return Counter([t.task_id async for t in runner.run(wanted)])

    with Journal(tmp_path / "journal.jsonl") as journal:
        found = asyncio.run(play(journal))
    assert found == Counter(request.task.id for request in wanted)
    assert Counter(t.task_id for t in read_journal(tmp_path / "journal.jsonl")) == found


def test_a_run_can_be_cancelled_at_every_step_of_the_loop() -> None:
    """verifiers#974, #1047, #1197: a cancellation is swallowed, or stops half-way."""

    async def cancel_after(steps: int) -> bool:
        """Whether the run was still on."""
        world, tasks = World(), tasks_of([{"seconds": dict.fromkeys(STAGES, 0.0)}] * 3)
        runner = runner_in(world, tasks, limits=RolloutLimits(live=2, setup=1, grade=1))

        async def read() -> None:
            async with aclosing(runner.run(requests_of(tasks))) as found:
                async for _ in found:
                    pass

        reading = asyncio.create_task(read())
        for _ in range(steps):
            await asyncio.sleep(0)
        was_on = reading.cancel()
        await asyncio.wait({reading})
        assert reading.cancelled() == was_on
        assert world.opened == world.closed
        assert len(asyncio.all_tasks()) == 1
        return was_on

    steps = 0
    while run_virtual(cancel_after(steps)):
        steps += 1
    assert steps > 20, "the whole run was walked through"


def test_a_reader_a_hundred_times_slower_than_the_episodes_loses_nothing_and_holds_them_back() -> None:
    """prime-rl#3050, slime#2238: environments outrun the trainer; finished groups are dropped, or the loop stops."""
    seen: list[RunMetrics] = []

    async def play() -> Counter[str]:
        limits = RolloutLimits(live=8, setup=8)
        runner = Runner(
            ScriptedPolicy(ends), limits=limits, make=lambda env_id, **_: Quick(), on_metrics=seen.append,
            metrics_every_s=1.0,
        )  # fmt: skip
        found: Counter[str] = Counter()
        async with aclosing(runner.run(crowd(200))) as trajectories:
            async for trajectory in trajectories:
                found[trajectory.task_id] += 1
                await asyncio.sleep(0.5)
        return found

    found = run_virtual(play())
    assert found == Counter(f"t{i}" for i in range(200))
    assert max(metrics.unread + metrics.live for metrics in seen) <= 2 * 8
    assert len(seen) > 90, "the run's own heart went on beating"


def test_environments_made_at_once_with_different_settings_do_not_meet() -> None:
    """mini-swe-agent#887, Gymnasium#1623: settings of one environment show in another."""

    async def play(reward: float) -> list[Trajectory]:
        runner = Runner(
            ScriptedPolicy(ends), env_kwargs={"reward": reward}, limits=RolloutLimits.batch(20),
            make=lambda env_id, **kwargs: Quick(**kwargs),
        )  # fmt: skip
        return [t async for t in runner.run(crowd(20))]

    async def all_at_once() -> list[list[Trajectory]]:
        return await asyncio.gather(*(play(float(i)) for i in range(8)))

    for i, found in enumerate(asyncio.run(all_at_once())):
        assert {t.reward for t in found} == {float(i)}
        assert {str(t.turns[0].observations[0].content) for t in found} == {f"t{k} of {i}" for k in range(20)}


def test_what_is_dropped_closes_nothing_that_is_in_use() -> None:
    """Gymnasium#1522: the destructor of one environment closes what another uses."""
    closed: list[str] = []

    class Shared(Quick):
        def branch(self, twin: Any) -> None:
            pass

        async def teardown(self) -> None:
            closed.append(self.task.id)

    env = Shared()
    env.reset(options={"task": Task("t", {})})
    twin = env.fork()
    del env
    gc.collect()
    assert closed == []
    *_, terminated, _, _ = twin.step(ToolCall("end"))
    assert terminated
    twin.close()
    assert closed == ["t"]
