"""Bubblewrap's isolation, the ledger, and what is said when there is no bubblewrap."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.errors import ConfigError, SandboxError
from skyrl_gym.sandbox import (
    Ledger,
    Limits,
    Mount,
    SandboxSpec,
    UnsafeSandboxWarning,
    bubblewrap_problem,
    open_sandbox,
)

needs_bubblewrap = pytest.mark.skipif(bubblewrap_problem() is not None, reason=bubblewrap_problem() or "")


def inside(command: str, spec: SandboxSpec | None = None) -> Any:
    async def main() -> Any:
        async with await open_sandbox(spec or SandboxSpec(), ledger=Ledger()) as box:
            return await box.exec(command, timeout_s=20)

    return asyncio.run(main())


@needs_bubblewrap
def test_killing_everything_inside_harms_nobody_outside() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        inside("kill -9 -1; kill -9 1")
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


@needs_bubblewrap
def test_host_processes_files_and_network_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("canary")
    text = inside(f"ls /proc | grep -c '^[0-9]'; cat {tmp_path}/secret; ls -A /root /home /tmp; cat /etc/shadow").text
    assert int(text.split()[0]) < 12
    assert "canary" not in text
    assert "root:" not in text
    probe = (
        "import socket, sys; s = socket.socket(); s.settimeout(2)\n"
        "try: s.connect(('127.0.0.1', int(sys.argv[1])))\n"
        "except OSError: print('refused')"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert "refused" in inside(f'/usr/bin/python3 -c "{probe}" {port}').text


@needs_bubblewrap
def test_it_runs_without_privileges() -> None:
    text = inside("id -u; grep CapEff /proc/self/status; echo x > /proc/sys/kernel/hostname").text
    assert text.split()[0] != "0"
    assert "CapEff:\t0000000000000000" in text
    assert "Permission denied" in text or "Read-only" in text


@needs_bubblewrap
def test_read_only_mounts_are_read_only(open_folder: Path) -> None:
    (open_folder / "a").write_text("x")
    (open_folder / "a").chmod(0o666)
    open_folder.chmod(0o777)
    spec = SandboxSpec(mounts=(Mount(str(open_folder), "/data"),))
    result = inside("cat /data/a; echo y > /data/a; touch /data/b", spec)
    assert result.text.startswith("x")
    assert result.text.count("Read-only file system") == 2
    assert [path.name for path in open_folder.iterdir()] == ["a"]
    assert (open_folder / "a").read_text() == "x"


@needs_bubblewrap
def test_a_fork_bomb_and_a_memory_bomb_are_contained() -> None:
    limits = Limits(memory_mb=256, processes=60)
    spec = SandboxSpec(limits=limits)
    forked = inside("for i in $(seq 200); do sleep 5 & done; wait", spec)
    assert "Resource temporarily unavailable" in forked.text
    eaten = inside("/usr/bin/python3 -c 'x = bytearray(10**9)'", spec)
    assert "MemoryError" in eaten.text


@needs_bubblewrap
def test_two_sandboxes_do_not_see_each_other() -> None:
    async def main() -> tuple[str, str]:
        async with await open_sandbox(SandboxSpec()) as one, await open_sandbox(SandboxSpec()) as two:
            await one.write("/tmp/mine", b"1")
            await one.write("mine", b"1")
            found = await two.exec("ls /tmp /work", timeout_s=10)
            again = await one.exec("ls /tmp /work", timeout_s=10)
            return found.text, again.text

    found, again = asyncio.run(main())
    assert "mine" not in found
    assert again.count("mine") == 2


@needs_bubblewrap
def test_arguments_hold_no_content() -> None:
    async def main() -> bytes:
        async with await open_sandbox(SandboxSpec()) as box:
            writing = asyncio.create_task(box.write("f", b"canary-4711" * 300_000))
            seen = b""
            while not writing.done():
                await asyncio.sleep(0.001)
                seen += _command_lines()
            return seen

    assert b"canary-4711" not in asyncio.run(main())


def _command_lines() -> bytes:
    found = b""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            found += Path(f"/proc/{pid}/cmdline").read_bytes()
    return found


@needs_bubblewrap
def test_a_start_that_fails_leaves_nothing(tmp_path: Path, own_temporary: Path) -> None:
    ledger = Ledger()
    for mounts in (
        (Mount(str(tmp_path / "none"), "/x"),),
        (Mount(str(tmp_path), "/work", "private"), Mount(str(tmp_path / "none"), "/x")),
        (Mount("/usr", "/proc/1/x"),),
    ):
        with pytest.raises(SandboxError):
            asyncio.run(open_sandbox(SandboxSpec(mounts=mounts), ledger=ledger))
    assert (ledger.created, ledger.destroyed, ledger.live) == (3, 3, 0)
    assert os.listdir(own_temporary) == []


@needs_bubblewrap
def test_an_interpreter_that_ends_takes_its_sandboxes_along() -> None:
    program = (
        "import asyncio, sys\n"
        "from skyrl_gym.sandbox import open_sandbox, SandboxSpec\n"
        "async def main():\n"
        "    box = await open_sandbox(SandboxSpec())\n"
        "    await (await box.shell()).run('sleep 986 &', timeout_s=5)\n"
        "    print(box._holder.init)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert not Path("/proc", done.stdout.strip()).exists()
    assert not subprocess.run(["pgrep", "-f", "sleep 986"], capture_output=True).stdout


def test_missing_bubblewrap_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in Path("/usr/bin").iterdir():
        if program.name != "bwrap":
            (tmp_path / program.name).symlink_to(program)
    monkeypatch.setenv("PATH", str(tmp_path))
    ledger = Ledger()
    with pytest.raises(SandboxError, match="apt-get install bubblewrap"):
        asyncio.run(open_sandbox(SandboxSpec(), ledger=ledger))
    assert ledger.live == 0


def test_no_user_namespaces_says_what_to_do(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = open_folder / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{open_folder}:{os.environ['PATH']}")
    ledger = Ledger()
    with pytest.raises(SandboxError, match=r"namespaces here .*Permission denied.*apparmor"):
        asyncio.run(open_sandbox(SandboxSpec(), ledger=ledger))
    assert ledger.live == 0


def test_the_process_backend_warns_and_unknown_ones_are_named() -> None:
    async def opened() -> None:
        async with await open_sandbox(SandboxSpec(), "process"):
            pass

    with pytest.warns(UnsafeSandboxWarning, match="does not isolate"):
        asyncio.run(opened())
    with pytest.raises(ConfigError, match="'dokcer'; known: bubblewrap, process"):
        asyncio.run(open_sandbox(SandboxSpec(), "dokcer"))
