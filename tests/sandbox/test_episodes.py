"""Sandboxes in episodes: one that dies, one that never opens, one that never closes."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import skyrl_gym
from skyrl_gym import Task, TaskSet, TextEnv, ToolCall, finish, tool
from skyrl_gym.errors import StopReason
from skyrl_gym.policy import Prompt, ScriptedPolicy
from skyrl_gym.rollout import Deadlines, RolloutLimits, RolloutRequest, Runner, Trajectory
from skyrl_gym.sandbox import FakeSandbox, Ledger, SandboxSpec, bubblewrap_problem, default_ledger, open_sandbox
from skyrl_gym.sandbox.processes import alive
from skyrl_gym.sandbox.testing.breaking import Broken, Place, breaking_at, lines_run
from skyrl_gym.sandbox.testing.harness import NAP, command_lines, survivors

pytestmark = pytest.mark.skipif(bubblewrap_problem() is not None, reason=bubblewrap_problem() or "")


def kill_and_wait(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    while alive(pid):
        time.sleep(0.01)


def wait_for_sleepers(number: int) -> None:
    until = time.monotonic() + 60
    while len(survivors(NAP, within_s=0)) < number and time.monotonic() < until:
        time.sleep(0.05)


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


@pytest.mark.parametrize("module", ["env.py", "workplace.py", "files.py", "instance.py"])
def test_an_error_at_any_line_of_a_setup_frees_the_sandbox(module: str) -> None:
    """rllm#616, NeMo Gym#2295: what a setup has opened when it, or a hook behind it, raises is never freed."""
    folder = Path(skyrl_gym.__file__).parent
    files = frozenset(map(str, (folder / "env.py", folder / "envs" / "swe" / module)))

    async def broken(place: Place | None) -> list[Place]:
        env: Any = gym.make("skyrl/swe-v0").unwrapped
        try:
            with lines_run(files) as lines, breaking_at(place, files) if place else nullcontext():
                await env.areset(seed=0)
        except Broken:
            assert place
        finally:
            await env.aclose()
        return lines

    lines = asyncio.run(broken(None))
    assert {Path(name).name for name, _ in lines} >= {module}
    for place in lines:
        asyncio.run(broken(place))
        assert default_ledger().live == 0, place


def test_a_run_that_is_cancelled_leaves_no_process_of_an_agent(boxed: type[Boxed], ledger: Ledger) -> None:
    """verifiers#1628, mini-swe#865: child processes outlive a cancellation."""
    daemons = f"sleep {NAP} & disown; setsid sleep {NAP} & (setsid sleep {NAP} & disown); sleep {NAP}"
    policy = ScriptedPolicy(lambda _: ToolCall("run", {"command": daemons}))
    runner = Runner(policy, limits=RolloutLimits(live=1, setup=1, grade=1), make=lambda env_id, **_: boxed())

    async def main() -> None:
        async def play_all() -> None:
            async for _ in runner.run([RolloutRequest("boxed", Task("t", {}), "t")]):
                pass

        playing = asyncio.create_task(play_all())
        await asyncio.to_thread(wait_for_sleepers, 4)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        assert survivors(NAP) == []
        assert ledger.live == 0

    asyncio.run(main())


def test_a_prompt_of_megabytes_that_begins_with_a_dash_passes_whole_and_in_no_argument_list(
    boxed: type[Boxed], ledger: Ledger
) -> None:
    """verifiers#1834, rllm#649, verifiers#1957, NeMo Gym#2284: what is said is too long for an argument list, is taken
    for an option there, or can be read there by everybody.
    """
    said = "-rf " + "canary-4714 " * 250_000
    heard: list[str] = []

    class Told(boxed):  # type: ignore[misc, valid-type]
        async def setup(self, task: Task) -> str:
            await super().setup(task)
            return said

        @tool
        async def keep(self, text: str) -> str:
            """Takes it to a file, to a program and to the shell; tells how much of it arrived."""
            await self.box.write("-rf", text.encode())
            kept = await self.box.read("-rf")
            given = await self.box.exec("cat", stdin=text.encode(), timeout_s=60, max_bytes=10_000_000)
            shown = await (await self.box.shell()).run(f"x='{text}'; echo ${{#x}}", timeout_s=60)
            return f"{len(kept)} {len(given.output)} {shown.text}"

    def answer(prompt: Prompt) -> ToolCall:
        heard.append(str(prompt.messages[-1].content))
        return ToolCall("keep", {"text": said}) if len(heard) == 1 else ToolCall("done")

    async def main() -> bytes:
        playing = asyncio.create_task(asyncio.to_thread(play, Told, ScriptedPolicy(answer), [{}]))
        seen = b""
        while not playing.done():
            seen += b"".join(command_lines().values())
            await asyncio.sleep(0.001)
        assert (await playing)["t0"].reward == 1.0
        return seen

    seen = asyncio.run(main())
    assert heard == [said, f"{len(said)} {len(said)} {len(said)}\n"]
    assert b"bwrap" in seen
    assert b"canary-4714" not in seen


def test_an_end_that_never_comes_holds_nobody_up_and_is_told(
    boxed: type[Boxed], ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    """ade-bench#3: one clean-up that hangs holds up the whole harness."""
    rows: list[dict[str, Any]] = [{"teardown": "hangs"}, {}]
    found = play(boxed, ScriptedPolicy(lambda _: ToolCall("done")), rows, teardown_s=0.5)
    assert [found[name].reward for name in ("t0", "t1")] == [1.0, 1.0]
    assert "teardown of task t0 did not end within 0.5 s: a leak" in caplog.text
    assert ledger.live == 0
