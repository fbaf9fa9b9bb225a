"""Commands, files and lifetimes: what every backend promises."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.errors import SandboxError, SandboxLost
from skyrl_gym.sandbox.base import Mount, Sandbox, SandboxSpec
from skyrl_gym.sandbox.ledger import Ledger
from skyrl_gym.sandbox.processes import alive, children_of
from skyrl_gym.sandbox.testing.breaking import Broken, Place, breaking_at, files_of, lines_run
from skyrl_gym.sandbox.testing.harness import NAP, Harness

__all__ = ["CommandTests"]


class CommandTests(Harness):
    """Of a backend."""

    def test_a_command_has_output_status_and_duration(self, in_sandbox: Any) -> None:
        async def work(box: Any) -> Any:
            return await box.exec("echo out; echo err >&2; exit 3", timeout_s=10)

        result = in_sandbox(work)
        assert (result.code, result.status) == (3, "ok")
        assert sorted(result.text.split()) == ["err", "out"]
        assert result.duration_s < 10

    def test_a_list_is_run_as_it_is_and_stdin_is_given(self, in_sandbox: Any) -> None:
        async def work(box: Any) -> Any:
            assert (await box.exec(["echo", "$HOME", "a  b"], timeout_s=10)).text == "$HOME a  b\n"
            return await box.exec("cat", timeout_s=10, stdin=b"\x00\xff" * 100_000)

        assert in_sandbox(work).output == b"\x00\xff" * 100_000

    @pytest.mark.parametrize(
        ("command", "code"),
        [
            ("no-such-program-7", 127),
            (["no-such-program-7", "-x"], 127),
            ("-rf", 127),
            (["-rf"], 127),
            ("kill -9 $$", 137),
            ("echo " + "x" * 200_000, 126),
            (["echo", "x" * 200_000], 126),
            ("echo a\0b", 0),
            ("echo \ud83d", 0),
        ],
    )
    def test_what_a_command_can_do_wrong_is_an_ordinary_result(self, in_sandbox: Any, command: Any, code: int) -> None:
        async def work(box: Any) -> Any:
            return await box.exec(command, timeout_s=10)

        result = in_sandbox(work)
        assert (result.code, result.status) == (code, "ok"), result.text

    def test_an_inspection_is_answered_as_a_command_is(self, in_sandbox: Any) -> None:
        async def work(box: Any) -> None:
            await box.write("a", b"1")
            for ask in (box.exec, box.inspect):
                assert (await ask(["cat", "a", "-"], timeout_s=10, stdin=b"2")).output == b"12"
                assert (await ask(["bash", "-c", "echo $X; exit 3"], timeout_s=10, env={"X": "given"})).code == 3
                late = await ask(["sleep", "600"], timeout_s=0.2)
                assert (late.code, late.status) == (None, "timeout")
                assert (await ask(["echo", "x" * 200_000], timeout_s=10)).code == 126
                assert (await ask(["head", "-c", "9999", "/dev/zero"], timeout_s=10, max_bytes=99)).dropped_bytes > 0

        in_sandbox(work)

    def test_a_backend_fulfils_the_protocol(self, in_sandbox: Any) -> None:
        async def work(box: Any) -> Any:
            assert isinstance(box, Sandbox)
            await box.write("a", b"1")
            result = await box.exec("echo $X", timeout_s=10, env={"X": "given here"})
            assert result.text == "given here\n"

        in_sandbox(work)

    def test_what_a_command_leaves_running_ends_with_it(self, in_sandbox: Any, survivors: Any) -> None:
        async def work(box: Any) -> Any:
            began = time.monotonic()
            result = await box.exec(f"sleep {NAP} & setsid sleep {NAP} >/dev/null 2>&1 & echo up", timeout_s=20)
            assert time.monotonic() - began < 5
            assert survivors(NAP) == []
            return result

        assert in_sandbox(work).text == "up\n"

    def test_an_answer_does_not_wait_for_input_that_nobody_reads(self, in_sandbox: Any) -> None:
        async def work(box: Any) -> Any:
            return await box.exec("exec <&-; echo done", timeout_s=10, stdin=b"x" * 3_000_000)

        assert in_sandbox(work).text == "done\n"

    def test_output_is_capped_while_it_streams(self, in_sandbox: Any) -> None:
        async def work(box: Any) -> Any:
            return await box.exec("head -c 30000000 /dev/zero | tr '\\0' x; echo end", timeout_s=30, max_bytes=1_000)

        result = in_sandbox(work)
        assert len(result.output) < 1_200
        assert result.dropped_bytes > 29_000_000
        assert result.output.endswith(b"xend\n")

    @pytest.mark.parametrize(
        "name", ["plain.txt", "deep/er/file", "-rf", "--help", "with space", "ünïcode🙂", "$(echo x)"]
    )
    def test_files_of_any_name_are_written_and_read(self, in_sandbox: Any, name: str) -> None:
        """verifiers#1957: text that begins with a dash is taken for an option."""
        data = bytes(range(256)) * 40

        async def work(box: Any) -> Any:
            await box.write(name, data)
            return await box.read(name)

        assert in_sandbox(work) == data

    def test_large_files_and_their_limit(self, in_sandbox: Any) -> None:
        async def work(box: Any) -> Any:
            await box.write("big", b"x" * 3_000_000)
            with pytest.raises(SandboxError, match="larger than 1000"):
                await box.read("big", max_bytes=1_000)
            return await box.read("big")

        assert len(in_sandbox(work)) == 3_000_000

    def test_missing_files_and_folders_raise_as_local_ones_do(self, in_sandbox: Any) -> None:
        async def work(box: Any) -> Any:
            with pytest.raises(FileNotFoundError):
                await box.read("none")
            await box.write("folder/file", b"")
            with pytest.raises(IsADirectoryError):
                await box.read("folder")
            with pytest.raises(IsADirectoryError):
                await box.write("folder", b"")
            assert await box.read("folder/file") == b""

        in_sandbox(work)

    @pytest.mark.parametrize("path", ["fifo", "/dev/zero", "/dev/tty", "bad\0name", "x" * 300, "a/" * 3_000])
    def test_what_is_no_file_raises_as_for_a_local_one(self, in_sandbox: Any, path: str) -> None:
        async def work(box: Any) -> Any:
            await box.exec("mkfifo fifo", timeout_s=5)
            with pytest.raises(OSError):
                await asyncio.wait_for(box.read(path), 10)

        in_sandbox(work)

    def test_a_file_that_can_not_be_written_raises_as_a_local_one_does(self, in_sandbox: Any) -> None:
        async def work(box: Any) -> Any:
            await box.write("file", b"")
            for path in ("/proc/version", "file/below", "x" * 300):
                with pytest.raises(OSError, match=path[:20]):
                    await box.write(path, b"x")

        in_sandbox(work)

    def test_a_private_mount_is_writable_and_the_hosts_copy_untouched(self, in_sandbox: Any, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("host")
        tmp_path.chmod(0o755)

        async def work(box: Any) -> Any:
            await box.exec("echo more >> a.txt; rm -rf b; mkdir b", timeout_s=10)
            return await box.read("a.txt")

        spec = SandboxSpec(mounts=(Mount(str(tmp_path), "/work", "private"),))
        assert in_sandbox(work, spec) == b"hostmore\n"
        assert (tmp_path / "a.txt").read_text() == "host"
        assert os.listdir(tmp_path) == ["a.txt"]

    def test_the_environment_is_an_allow_list(self, in_sandbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """verifiers#1757, #1758: variables of the host, keys among them, reach the agent."""
        monkeypatch.setenv("SECRET_TOKEN_FOR_TEST", "canary-value")

        async def work(box: Any) -> Any:
            return await box.exec("env; cat /proc/self/environ /proc/1/environ 2>/dev/null", timeout_s=10)

        text = in_sandbox(work, SandboxSpec(env={"GIVEN": "yes"})).text
        assert "GIVEN=yes" in text
        assert "canary-value" not in text

    def test_a_command_past_its_deadline_dies_with_all_it_started(self, in_sandbox: Any, survivors: Any) -> None:
        async def work(box: Any) -> Any:
            started = time.monotonic()
            command = f"sleep {NAP} & setsid sleep {NAP} & (setsid sleep {NAP} & disown) ; sleep {NAP}"
            result = await box.exec(command, timeout_s=0.5)
            return result, time.monotonic() - started

        result, took = in_sandbox(work)
        assert (result.status, took < 3) == ("timeout", True)
        assert survivors(NAP) == []

    @pytest.mark.parametrize("command", ["while :; do :; done", "command -v timeout; sleep 60"])
    def test_a_deadline_needs_no_program_inside(self, in_sandbox: Any, command: str) -> None:
        """OpenEnv#1018: there is no deadline where an image lacks GNU timeout."""
        alone = 'mkdir -p only; ln -sf "$(command -v sleep)" only/sleep; PATH=$PWD/only'

        async def work(box: Any) -> list[Any]:
            shell = await box.shell()
            return [await run(f"{alone}; {command}", timeout_s=1) for run in (box.exec, shell.run)]

        for result in in_sandbox(work):
            assert (result.status, "timeout" in result.text, result.duration_s < 5) == ("timeout", False, True)

    def test_closing_kills_daemons_of_the_shell(self, in_sandbox: Any, survivors: Any) -> None:
        async def work(box: Any) -> Any:
            shell = await box.shell()
            daemons = f"sleep {NAP} & disown; setsid sleep {NAP} & (setsid sleep {NAP} &)"
            return await shell.run(f"{daemons}; echo up", timeout_s=5)

        assert in_sandbox(work).text.endswith("up\n")
        assert survivors(NAP) == []

    def test_cancelling_a_command_kills_it(self, in_sandbox: Any, survivors: Any) -> None:
        """verifiers#1628, mini-swe#865: child processes outlive a cancellation."""

        async def work(box: Any) -> Any:
            daemons = f"sleep {NAP} & disown; setsid sleep {NAP} & (setsid sleep {NAP} &)"
            task = asyncio.create_task(box.exec(f"{daemons}; sleep {NAP}", timeout_s=60))
            await asyncio.sleep(0.5)
            assert survivors(NAP, within_s=0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert survivors(NAP) == []

        in_sandbox(work)

    def test_a_closed_sandbox_is_lost(self, in_sandbox: Any) -> None:
        async def work(box: Any) -> Any:
            await box.close()
            await box.close()
            with pytest.raises(SandboxLost):
                await box.exec("true", timeout_s=5)
            with pytest.raises(SandboxLost):
                await box.shell()

        in_sandbox(work)

    def test_no_descriptor_or_folder_is_left_behind(self, in_sandbox: Any, own_temporary: Path) -> None:
        async def work(box: Any) -> Any:
            await (await box.shell()).run("mkdir -p x/y; chmod 000 x/y; chmod 500 x", timeout_s=5)
            for _ in range(5):
                await box.exec("true", timeout_s=5)

        in_sandbox(work)
        before = len(os.listdir("/proc/self/fd"))
        in_sandbox(work)
        assert len(os.listdir("/proc/self/fd")) <= before
        assert os.listdir(own_temporary) == []
        assert self.left() == []
        assert [pid for pid in children_of(os.getpid()) if not alive(pid)] == []

    def test_closing_in_the_middle_of_a_command_loses_it(self, in_sandbox: Any, survivors: Any) -> None:
        async def work(box: Any) -> Any:
            shell = await box.shell()
            tasks = [
                asyncio.create_task(box.exec(f"sleep {NAP}", timeout_s=60)),
                asyncio.create_task(shell.run(f"sleep {NAP}", timeout_s=60)),
            ]
            await asyncio.sleep(0.3)
            await asyncio.gather(box.close(), box.close())
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(ended, SandboxLost)
            assert survivors(NAP) == []

        in_sandbox(work)

    def test_closing_goes_on_when_its_caller_is_cancelled(
        self, in_sandbox: Any, survivors: Any, ledger: Ledger
    ) -> None:
        async def work(box: Any) -> Any:
            await (await box.shell()).run(f"sleep {NAP} & sleep {NAP} &", timeout_s=5)
            closing = asyncio.create_task(box.close())
            await asyncio.sleep(0)
            for _ in range(3):
                closing.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await closing
            assert ledger.live == 0
            assert survivors(NAP) == []

        in_sandbox(work)

    def test_a_start_that_is_cancelled_at_any_moment_leaves_nothing(
        self, ledger: Ledger, tmp_path: Path, own_temporary: Path
    ) -> None:
        (tmp_path / "file").write_bytes(b"x" * 1_000_000)
        spec = self.made_like(SandboxSpec(mounts=(Mount(str(tmp_path), "/work", "private"),)))

        async def main(delay_s: float) -> None:
            opening = asyncio.create_task(self.open(spec, ledger))
            await asyncio.sleep(delay_s)
            opening.cancel()
            try:
                box = await opening
            except asyncio.CancelledError:
                return
            await box.close()

        asyncio.run(main(self.cancelled_after_s[-1]))
        children = children_of(os.getpid())
        descriptors = len(os.listdir("/proc/self/fd"))
        for delay_s in self.cancelled_after_s:
            asyncio.run(main(delay_s))
            assert ledger.live == 0
        assert ledger.created == ledger.destroyed
        assert len(os.listdir("/proc/self/fd")) <= descriptors
        assert os.listdir(own_temporary) == []
        assert self.left() == []
        assert not [pid for pid in children_of(os.getpid()) - children if alive(pid)]

    @pytest.mark.timeout(900)
    def test_an_error_at_any_line_of_the_start_leaves_nothing(
        self, ledger: Ledger, tmp_path: Path, own_temporary: Path
    ) -> None:
        """rllm#616, verifiers#958, OpenJarvis#536: a start that fails half-way frees nothing."""
        (tmp_path / "file").write_bytes(b"x" * 1_000)
        spec = self.made_like(SandboxSpec(mounts=(Mount(str(tmp_path), "/work", "private"),)))

        async def begin() -> Sandbox:
            return await self.open(spec, ledger)

        async def whole() -> tuple[frozenset[str], list[Place]]:
            box = await begin()
            await box.close()
            files = files_of(type(box))
            with lines_run(files) as lines:
                box = await begin()
            await box.close()
            return files, lines

        async def broken(files: frozenset[str], place: Place) -> None:
            with breaking_at(place, files):
                try:
                    box = await begin()
                except (Broken, SandboxError):
                    return
            await box.close()

        files, lines = asyncio.run(whole())
        assert lines
        children, descriptors = children_of(os.getpid()), len(os.listdir("/proc/self/fd"))
        for place in lines:
            asyncio.run(broken(files, place))
            assert ledger.live == 0, place
            assert not [pid for pid in children_of(os.getpid()) - children if alive(pid)], place
            assert len(os.listdir("/proc/self/fd")) <= descriptors, place
            assert os.listdir(own_temporary) == [], place
            assert self.left() == [], place

    def test_a_folder_that_is_not_there_is_refused(self, ledger: Ledger, tmp_path: Path) -> None:
        spec = self.made_like(SandboxSpec(mounts=(Mount(str(tmp_path / "none"), "/x"),)))
        with pytest.raises(SandboxError, match="no such folder"):
            asyncio.run(self.open(spec, ledger))
        assert ledger.live == 0
