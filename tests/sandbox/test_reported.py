"""Faults of sandboxes and clocks that other systems were reported for; each test names the reports."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym import Task, TextEnv, ToolCall, finish, tool
from skyrl_gym.envs.swe.report import read_report
from skyrl_gym.errors import GradeError, StopReason
from skyrl_gym.policy import Prompt, ScriptedPolicy
from skyrl_gym.rollout import Deadlines, RolloutLimits, RolloutRequest, Runner, Trajectory
from skyrl_gym.sandbox import ExecResult, Ledger, Mount, Sandbox, SandboxSpec, bubblewrap_problem, open_sandbox

pytestmark = pytest.mark.skipif(bubblewrap_problem() is not None, reason=bubblewrap_problem() or "")

ANSWER = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 16\r\nConnection: close\r\n\r\ninjected failure"


@pytest.fixture
def broken_engine(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """A container engine that answers everything with 500; what it was asked."""
    asked: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(open_folder / "socket"))
        server.listen()

        def serve() -> None:
            while True:
                connection, _ = server.accept()
                with connection:
                    if request := connection.recv(10_000):
                        asked.append(request)
                        connection.sendall(ANSWER)
                    elif asked and asked[-1] == b"end":
                        return
                    else:
                        continue

        threading.Thread(target=serve, daemon=True).start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{open_folder}/socket")
        yield asked
        asked.append(b"end")
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(open_folder / "socket"))


class Retried(TextEnv):
    """Its first sandbox is a container of an engine that fails."""

    ledger: Ledger
    tries: int = 0

    async def setup(self, task: Task) -> str:
        type(self).tries += 1
        if self.tries == 1:
            self.box: Sandbox = await open_sandbox(SandboxSpec(image="any"), "docker", ledger=self.ledger)
        self.box = await open_sandbox(SandboxSpec(), ledger=self.ledger)
        return "Go."

    @tool
    async def run(self, command: str) -> str:
        """Runs it."""
        return (await self.box.exec(command, timeout_s=10)).text

    @tool
    async def done(self) -> Any:
        """Ends."""
        return finish()

    async def grade(self) -> float:
        return 1.0

    async def teardown(self) -> None:
        if hasattr(self, "box"):
            await self.box.close()


def play(env: type[TextEnv], policy: Any, *, retries: int = 1, **deadlines: float) -> list[Trajectory]:
    limits = RolloutLimits(live=1, setup=1, grade=1, retries=retries)
    runner = Runner(policy, limits=limits, deadlines=Deadlines(**deadlines), make=lambda env_id, **_: env())

    async def main() -> list[Trajectory]:
        return [found async for found in runner.run([RolloutRequest("env", Task("t", {}), "t")])]

    return asyncio.run(main())


def test_a_500_of_the_engine_is_tried_again_and_leaves_one_trace_with_one_branch(
    broken_engine: list[bytes], ledger: Ledger
) -> None:
    """verifiers#1739, #2036: a retry runs the whole program again and forks the trace."""
    pytest.importorskip("docker")

    class Fresh(Retried):
        pass

    Fresh.ledger = ledger
    prompts: list[Prompt] = []

    def answer(prompt: Prompt) -> ToolCall:
        prompts.append(prompt)
        return ToolCall("run", {"command": "echo hello"}) if len(prompt.messages) == 1 else ToolCall("done")

    (found,) = play(Fresh, ScriptedPolicy(answer))
    assert broken_engine and Fresh.tries == 2
    assert (found.reward, found.valid, found.stop_reason) == (1.0, True, StopReason.DONE)
    assert [str(turn.observations[0].content).strip() for turn in found.turns][:1] == ["hello"]
    assert [len(prompt.messages) for prompt in prompts] == [1, 3]
    assert ledger.live == 0


def test_the_mark_of_a_run_before_ends_no_other(open_folder: Path, ledger: Ledger) -> None:
    """slime#2239: a stale marker of a previous run is accepted as completion."""
    spec = SandboxSpec(mounts=(Mount(str(open_folder), "/left"),))

    async def main() -> tuple[ExecResult, ExecResult]:
        async with await open_sandbox(SandboxSpec(), ledger=ledger) as first:
            await (await first.shell()).run("printf '\\001%s 0\\001' \"$__n\" > /work/mark", timeout_s=10)
            (open_folder / "mark").write_bytes(await first.read("/work/mark"))
        async with await open_sandbox(spec, ledger=ledger) as second:
            shell = await second.shell()
            ended = await shell.run("cat /left/mark; sleep 0.2; echo end; (exit 7)", timeout_s=10)
            return ended, await second.exec("cat /left/mark; exit 8", timeout_s=10)

    by_shell, by_exec = asyncio.run(main())
    assert (by_shell.code, by_exec.code) == (7, 8)
    assert by_shell.text.endswith("end\n") and len(by_shell.output) > 20


def test_a_report_of_tests_that_another_run_left_is_not_read() -> None:
    """slime#2239: as before, where tests are graded."""
    left = b'0123456789abcdef{"intact": true, "code": 1, "outcomes": {"t": "passed"}, "messages": {}}\n'
    with pytest.raises(GradeError, match="could not be begun"):
        read_report(ExecResult(left, 1), "fedcba9876543210")


class Raises(TextEnv):
    """A tool that raises TimeoutError, or sleeps."""

    def setup(self, task: Task) -> str:
        return "Go."

    @tool
    async def late(self) -> str:
        """Raises at once what a clock would raise."""
        raise TimeoutError("from a tool")

    @tool(timeout_s=60)
    async def sleeps(self) -> str:
        """Sleeps."""
        await asyncio.sleep(30)
        return "awake"

    @tool
    async def done(self) -> Any:
        """Ends."""
        return finish()

    def grade(self) -> float:
        return 1.0


def test_a_timeout_error_of_a_tool_of_a_policy_and_of_the_clock_have_three_reasons_and_the_true_duration() -> None:
    """xum#1539, reef#383: a TimeoutError of user code is reported as the agent's timeout."""

    def of_a_tool(prompt: Prompt) -> ToolCall:
        return ToolCall("late") if len(prompt.messages) == 1 else ToolCall("done")

    def of_the_policy(prompt: Prompt) -> ToolCall:
        raise TimeoutError("from a policy")

    (by_tool,) = play(Raises, ScriptedPolicy(of_a_tool), retries=0, episode_s=60.0)
    (by_policy,) = play(Raises, ScriptedPolicy(of_the_policy), retries=0, episode_s=60.0)
    (by_clock,) = play(Raises, ScriptedPolicy(lambda prompt: ToolCall("sleeps")), retries=0, episode_s=1.0)
    reasons = [found.stop_reason for found in (by_tool, by_policy, by_clock)]
    assert reasons == [StopReason.DONE, StopReason.POLICY_ERROR, StopReason.EPISODE_TIMEOUT]
    assert "from a tool" in str(by_tool.turns[0].observations[0].content)
    assert by_policy.error is not None and "from a policy" in by_policy.error.message
    assert by_clock.seconds["run"] >= 0.9
    assert by_tool.seconds["run"] < 30 and by_policy.seconds["run"] < 30
