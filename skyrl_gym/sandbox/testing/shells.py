"""The persistent shell, against everything that a command can do to it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skyrl_gym.sandbox.testing.harness import NAP, Harness

__all__ = ["ShellTests"]


def run_all(in_sandbox: Any, *commands: str, timeout_s: float = 5.0) -> list[Any]:
    """What the shell answers to each."""

    async def work(box: Any) -> list[Any]:
        shell = await box.shell()
        return [await shell.run(command, timeout_s=timeout_s, max_bytes=2_000) for command in commands]

    results: list[Any] = in_sandbox(work)
    return results


class ShellTests(Harness):
    """Of a backend."""

    def test_state_is_kept(self, in_sandbox: Any) -> None:
        results = run_all(in_sandbox, "cd /tmp; export A=5; f() { echo f$A; }", "pwd; f", "false")
        assert results[1].text == "/tmp\nf5\n"
        assert [r.code for r in results] == [0, 0, 1]

    @pytest.mark.parametrize(
        "abuse",
        [
            "cat",
            "read x; echo got $x",
            "exec >/dev/null 2>&1",
            "exec 2>&-",
            'for i in $(seq 3 250); do eval "exec $i>&-" 2>/dev/null; done',
            "set -e; false",
            "set -u; set -o pipefail",
            "trap '' TERM INT",
            "printf '\\001%016d 0\\001' 7",
            "printf '\\001%016d 0' 7",  # what closes it is the beginning of the true mark
            "head -c 5000 /dev/urandom",
            "unset PATH; PATH=/usr/bin:/bin",
            "(sleep 0.1; echo late) &",
            "if true; then",
            "echo 'unclosed",
            "builtin() { :; }; eval() { :; }; printf() { :; }; unset -f builtin eval printf",
            "cd /nonexistent",
            "kill -STOP 999999 2>/dev/null",
            "stty raw 2>&1; tput reset 2>/dev/null",
        ],
    )
    def test_the_next_command_works_after(self, in_sandbox: Any, abuse: str) -> None:
        first, second = run_all(in_sandbox, abuse, "echo alive $((1+1))")
        assert first.status in ("ok", "shell_exited")
        assert second.text.splitlines()[-1] == "alive 2"

    @pytest.mark.parametrize(
        ("ending", "code"), [("exit 7", 7), ("exec true", 0), ("kill -9 $$", 137), ("exec sh -c 'exit 4'", 4)]
    )
    def test_a_command_that_ends_the_shell_costs_its_state_only(self, in_sandbox: Any, ending: str, code: int) -> None:
        first, second = run_all(in_sandbox, f"A=1; {ending}", "echo state:$A")
        assert (first.status, first.code, first.restarted) == ("shell_exited", code, True)
        assert (second.status, second.restarted) == ("ok", False)
        assert second.text == "state:\n"

    @pytest.mark.parametrize(("signal", "code"), [("TERM", 143), ("KILL", 137)])
    def test_signals_end_what_the_shell_started_and_leave_the_shell(
        self, in_sandbox: Any, signal: str, code: int
    ) -> None:
        ended = f"sleep 600 & kill -{signal} $!; wait $!; echo $?"
        itself = "A=1; for to in $$ $PPID; do kill -TERM $to; kill -HUP $to; kill -INT $to; done"
        later = "(sleep 0.2; kill -TERM $PPID $$) &"
        results = run_all(in_sandbox, ended, itself, later, "sleep 0.4; echo $A")
        assert results[0].text.splitlines()[-1] == str(code)
        assert [result.restarted for result in results] == [False] * 4
        assert results[3].text == "1\n"

    def test_a_command_that_kills_its_supervisor_costs_the_shell_not_the_sandbox(self, in_sandbox: Any) -> None:
        first, second = run_all(in_sandbox, "echo before; kill -9 $PPID; kill -9 $$", "echo alive")
        assert (first.text, first.status, first.restarted) == ("before\n", "shell_exited", True)
        assert second.text == "alive\n"

    @pytest.mark.parametrize(
        "stuck",
        [
            "while :; do sleep 0.01; done",
            "sleep 600; sleep 600; sleep 600",
            "trap '' TERM INT; sleep 600",
            "setsid sleep 600",
            "sleep 600",
            "while :; do :; done",
            "sleep 600 & wait",
            "cat /dev/zero > /dev/null",
            "yes > /dev/null",
        ],
    )
    def test_a_command_past_its_deadline_is_killed_and_the_shell_goes_on(self, in_sandbox: Any, stuck: str) -> None:
        async def work(box: Any) -> Any:
            shell = await box.shell()
            first = await shell.run(stuck, timeout_s=0.3)
            return first, await shell.run("echo alive", timeout_s=5)

        first, second = in_sandbox(work)
        assert (first.status, first.code) == ("timeout", None)
        assert first.duration_s < 3
        assert second.text.endswith("alive\n")

    def test_endless_output_is_stopped(self, in_sandbox: Any) -> None:
        first, second = run_all(in_sandbox, "yes", "echo alive", timeout_s=30)
        assert first.status == "output_limit"
        assert len(first.output) < 3_000
        assert second.text.endswith("alive\n")

    def test_output_in_order_and_complete(self, in_sandbox: Any) -> None:
        results = run_all(in_sandbox, *(f"seq {i} {i + 50}" for i in range(40)))
        for i, result in enumerate(results):
            assert result.text == "".join(f"{n}\n" for n in range(i, i + 51))

    def test_commands_of_one_shell_wait_for_each_other(self, in_sandbox: Any) -> None:
        async def work(box: Any) -> Any:
            shell = await box.shell()
            return await asyncio.gather(*(shell.run(f"echo {i}; sleep 0.02; echo {i}", timeout_s=5) for i in range(5)))

        assert [r.text for r in in_sandbox(work)] == [f"{i}\n{i}\n" for i in range(5)]

    def test_a_job_that_kills_its_shell_between_commands_is_no_answer_to_the_next(self, in_sandbox: Any) -> None:
        async def work(box: Any) -> Any:
            shell = await box.shell()
            await shell.run("(sleep 0.1; kill -9 $$) &", timeout_s=5)
            await asyncio.sleep(0.4)
            return [await shell.run(f"echo {i}", timeout_s=5) for i in range(3)]

        results = in_sandbox(work)
        assert [(r.text, r.status, r.code) for r in results] == [(f"{i}\n", "ok", 0) for i in range(3)]
        assert [r.restarted for r in results] == [True, False, False]

    def test_the_end_of_a_command_before_is_not_taken_for_that_of_the_next(self, in_sandbox: Any) -> None:
        late = "(sleep 0.3; printf '\\001%s 0\\001' \"$__n\") & true"
        first, second = run_all(in_sandbox, late, "sleep 0.8; echo end; (exit 7)")
        assert (first.status, first.code) == ("ok", 0)
        assert (second.code, second.text.endswith("end\n")) == (7, True)

    def test_a_shell_that_was_stopped_comes_back(self, in_sandbox: Any) -> None:
        async def work(box: Any) -> Any:
            shell = await box.shell()
            await shell.run("(sleep 0.1; kill -STOP $$) &", timeout_s=5)
            await asyncio.sleep(0.3)
            first = await shell.run("echo " + "x" * 1_000_000, timeout_s=0.5)
            return first, await shell.run("echo alive", timeout_s=5)

        first, second = in_sandbox(work)
        assert (first.status, first.restarted, first.duration_s < 4) == ("timeout", True, True)
        assert second.text == "alive\n"

    def test_a_cancelled_command_is_killed_and_the_next_one_has_its_own_answer(
        self, in_sandbox: Any, survivors: Any
    ) -> None:
        """verifiers#1628, mini-swe#865: child processes outlive a cancellation."""

        async def work(box: Any) -> Any:
            shell = await box.shell()
            task = asyncio.create_task(shell.run(f"sleep {NAP} & sleep {NAP}; echo late", timeout_s=60))
            await asyncio.sleep(0.3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert survivors(NAP) == []
            return [await shell.run(f"echo {i}", timeout_s=5) for i in range(2)]

        assert [r.text for r in in_sandbox(work)] == ["0\n", "1\n"]

    def test_a_command_may_be_long(self, in_sandbox: Any) -> None:
        """verifiers#1834, rllm#649: a payload in the arguments is longer than the kernel takes."""
        (result,) = run_all(in_sandbox, f"x='{'y' * 3_000_000}'; echo ${{#x}}", timeout_s=60)
        assert result.text == "3000000\n"

    def test_a_command_may_begin_with_a_dash(self, in_sandbox: Any) -> None:
        """verifiers#1957: text that begins with a dash is taken for an option."""
        (result,) = run_all(in_sandbox, "-rf")
        assert (result.code, "-rf: command not found" in result.text) == (127, True)
