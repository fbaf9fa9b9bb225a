"""What every backend promises."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.errors import SandboxError, SandboxLost
from skyrl_gym.sandbox import Mount, SandboxSpec
from skyrl_gym.sandbox.processes import marked


def test_a_command_has_output_status_and_duration(in_sandbox: Any) -> None:
    async def work(box: Any) -> Any:
        return await box.exec("echo out; echo err >&2; exit 3", timeout_s=10)

    result = in_sandbox(work)
    assert (result.code, result.status) == (3, "ok")
    assert sorted(result.text.split()) == ["err", "out"]
    assert result.duration_s < 10


def test_a_list_is_run_as_it_is_and_stdin_is_given(in_sandbox: Any) -> None:
    async def work(box: Any) -> Any:
        assert (await box.exec(["echo", "$HOME", "a  b"], timeout_s=10)).text == "$HOME a  b\n"
        return await box.exec("cat", timeout_s=10, stdin=b"\x00\xff" * 100_000)

    assert in_sandbox(work).output == b"\x00\xff" * 100_000


def test_a_missing_program_is_an_ordinary_failure(in_sandbox: Any) -> None:
    async def work(box: Any) -> Any:
        return await box.exec("no-such-program-7", timeout_s=10)

    assert in_sandbox(work).code == 127


def test_output_is_capped_while_it_streams(in_sandbox: Any) -> None:
    async def work(box: Any) -> Any:
        return await box.exec("head -c 30000000 /dev/zero | tr '\\0' x; echo end", timeout_s=30, max_bytes=1_000)

    result = in_sandbox(work)
    assert len(result.output) < 1_200
    assert result.dropped_bytes > 29_000_000
    assert result.output.endswith(b"xend\n")


@pytest.mark.parametrize("name", ["plain.txt", "deep/er/file", "-rf", "--help", "with space", "ünïcode🙂", "$(echo x)"])
def test_files_of_any_name_are_written_and_read(in_sandbox: Any, name: str) -> None:
    data = bytes(range(256)) * 40

    async def work(box: Any) -> Any:
        await box.write(name, data)
        return await box.read(name)

    assert in_sandbox(work) == data


def test_large_files_and_their_limit(in_sandbox: Any) -> None:
    async def work(box: Any) -> Any:
        await box.write("big", b"x" * 3_000_000)
        with pytest.raises(SandboxError, match="larger than 1000"):
            await box.read("big", max_bytes=1_000)
        return await box.read("big")

    assert len(in_sandbox(work)) == 3_000_000


def test_missing_files_and_folders_raise_as_local_ones_do(in_sandbox: Any) -> None:
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


def test_a_private_mount_is_writable_and_the_hosts_copy_untouched(in_sandbox: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("host")
    tmp_path.chmod(0o755)

    async def work(box: Any) -> Any:
        await box.exec("echo more >> a.txt; rm -rf b; mkdir b", timeout_s=10)
        return await box.read("a.txt")

    spec = SandboxSpec(mounts=(Mount(str(tmp_path), "/work", "private"),))
    assert in_sandbox(work, spec) == b"hostmore\n"
    assert (tmp_path / "a.txt").read_text() == "host"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_the_environment_is_an_allow_list(in_sandbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN_FOR_TEST", "canary-value")

    async def work(box: Any) -> Any:
        return await box.exec("env; cat /proc/self/environ /proc/1/environ 2>/dev/null", timeout_s=10)

    text = in_sandbox(work, SandboxSpec(env={"GIVEN": "yes"})).text
    assert "GIVEN=yes" in text
    assert "canary-value" not in text


def test_a_command_past_its_deadline_dies_with_all_it_started(in_sandbox: Any) -> None:
    async def work(box: Any) -> Any:
        started = time.monotonic()
        command = "sleep 987 & setsid sleep 987 & (setsid sleep 987 & disown) ; sleep 987"
        result = await box.exec(command, timeout_s=0.5)
        return result, time.monotonic() - started

    result, took = in_sandbox(work)
    assert (result.status, took < 3) == ("timeout", True)
    assert _sleepers() == []


def test_closing_kills_daemons_of_the_shell(in_sandbox: Any) -> None:
    async def work(box: Any) -> Any:
        shell = await box.shell()
        return await shell.run("sleep 987 & disown; setsid sleep 987 & (setsid sleep 987 &); echo up", timeout_s=5)

    assert in_sandbox(work).text.endswith("up\n")
    assert _sleepers() == []


def test_cancelling_a_command_kills_it(in_sandbox: Any) -> None:
    async def work(box: Any) -> Any:
        task = asyncio.create_task(box.exec("sleep 987", timeout_s=60))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert _sleepers() == []

    in_sandbox(work)


def test_a_closed_sandbox_is_lost(in_sandbox: Any) -> None:
    async def work(box: Any) -> Any:
        await box.close()
        await box.close()
        with pytest.raises(SandboxLost):
            await box.exec("true", timeout_s=5)
        with pytest.raises(SandboxLost):
            await box.shell()

    in_sandbox(work)


def test_no_descriptor_or_folder_is_left_behind(in_sandbox: Any) -> None:
    async def work(box: Any) -> Any:
        await (await box.shell()).run("mkdir -p x/y; chmod 000 x/y; chmod 500 x", timeout_s=5)
        for _ in range(5):
            await box.exec("true", timeout_s=5)

    in_sandbox(work)
    before = len(os.listdir("/proc/self/fd"))
    in_sandbox(work)
    assert len(os.listdir("/proc/self/fd")) <= before
    assert marked("SKYRL_PROCESS=") == set()


def _sleepers() -> list[str]:
    """Sleepers of these tests that still run; a moment is left for the kernel."""
    for _ in range(20):
        found = [pid for pid in os.listdir("/proc") if pid.isdigit() and _is_sleeper(pid)]
        if not found:
            return []
        time.sleep(0.1)
    return found


def _is_sleeper(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x00987\x00"
    except OSError:
        return False
