"""Sandboxes in episodes: one that dies, one that never opens, one that never closes."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from skyrl_gym import Task, TaskSet, TextEnv, ToolCall, finish, tool
from skyrl_gym.errors import StopReason
from skyrl_gym.policy import Prompt, ScriptedPolicy
from skyrl_gym.rollout import Deadlines, RolloutLimits, RolloutRequest, Runner, Trajectory
from skyrl_gym.sandbox import FakeSandbox, Ledger, SandboxSpec, bubblewrap_problem, open_sandbox
from skyrl_gym.sandbox.processes import alive

pytestmark = pytest.mark.skipif(bubblewrap_problem() is not None, reason=bubblewrap_problem() or "")


def kill_and_wait(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    while alive(pid):
        time.sleep(0.01)


class Boxed(TextEnv):
    """A shell in a sandbox; `task.data` says what befalls it."""

    ledger: Ledger

    def load_tasks(self, split: str) -> TaskSet:
        return TaskSet.from_rows([{"id": "t"}])

    async def setup(self, task: Task) -> str:
        self.box: Any = FakeSandbox()
        if task.data.get("teardown") != "hangs":
            self.box = await open_sandbox(SandboxSpec(), ledger=self.ledger)
        if task.data.get("setup") == "hangs":
            await self.box.exec("sleep 600", timeout_s=600)
        return "Go."

    @tool
    async def run(self, command: str) -> str:
        """Runs it."""
        if command == "the end":
            await asyncio.to_thread(kill_and_wait, self.box._holder.init)
        return str((await (await self.box.shell()).run(command, timeout_s=5)).text)

    @tool
    async def done(self) -> Any:
        """Ends."""
        return finish()

    async def grade(self) -> float:
        return 1.0

    async def teardown(self) -> None:
        if self.task.data.get("teardown") == "hangs":
            await asyncio.sleep(600)
        await self.box.close()


@pytest.fixture
def boxed(ledger: Ledger) -> Iterator[type[Boxed]]:
    class Fresh(Boxed):
        pass

    Fresh.ledger = ledger
    yield Fresh


def play(boxed: type[Boxed], policy: Any, rows: list[dict[str, Any]], **deadlines: float) -> dict[str, Trajectory]:
    runner = Runner(
        policy,
        limits=RolloutLimits(live=1, setup=1, grade=1, retries=0),
        deadlines=Deadlines(**deadlines),
        make=lambda env_id, **_: boxed(),
    )

    async def main() -> dict[str, Trajectory]:
        asked = (RolloutRequest("boxed", Task(f"t{n}", row), f"t{n}") for n, row in enumerate(rows))
        return {found.task_id: found async for found in runner.run(asked)}

    return asyncio.run(main())


def test_a_sandbox_that_dies_in_the_third_turn_ends_the_episode_and_asks_no_model_any_more(
    boxed: type[Boxed], ledger: Ledger
) -> None:
    """mini-swe#832: a container ends in the middle of a run, and the run goes on being paid for."""
    asked = []

    def answer(prompt: Prompt) -> ToolCall:
        asked.append(prompt)
        return ToolCall("run", {"command": "the end" if len(asked) == 3 else "echo on"})

    (found,) = play(boxed, ScriptedPolicy(answer), [{}]).values()
    assert (found.stop_reason, found.reward, found.valid) == (StopReason.SANDBOX_LOST, None, False)
    assert len(asked) == 3
    assert ledger.live == 0


def test_a_setup_that_hangs_is_bounded_and_makes_room_for_the_next(boxed: type[Boxed], ledger: Ledger) -> None:
    """OpenEnv#1036: the agent's timeout does not cover the start of its sandbox."""
    began = time.monotonic()
    found = play(boxed, ScriptedPolicy(lambda _: ToolCall("done")), [{"setup": "hangs"}, {}], setup_s=3.0)
    assert found["t0"].stop_reason is StopReason.SETUP_TIMEOUT
    assert found["t1"].reward == 1.0
    assert (ledger.created, ledger.live) == (2, 0)
    assert time.monotonic() - began < 30


def test_an_end_that_never_comes_holds_nobody_up_and_is_told(
    boxed: type[Boxed], ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """ade-bench#3: one clean-up that hangs holds up the whole harness."""
    rows: list[dict[str, Any]] = [{"teardown": "hangs"}, {}]
    found = play(boxed, ScriptedPolicy(lambda _: ToolCall("done")), rows, teardown_s=0.5)
    assert [found[name].reward for name in ("t0", "t1")] == [1.0, 1.0]
    assert "teardown of task t0 did not end within 0.5 s: a leak" in caplog.text
    assert ledger.live == 0
