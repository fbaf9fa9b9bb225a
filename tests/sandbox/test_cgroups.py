"""Limits for all processes of a bubblewrap sandbox together, by control groups."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skyrl_gym.sandbox import (
    Ledger,
    Limits,
    SandboxSpec,
    bubblewrap,
    bubblewrap_problem,
    cgroups,
    check_backend,
    open_sandbox,
    status,
)
from skyrl_gym.sandbox.cgroups import hierarchy

needs_bubblewrap = pytest.mark.skipif(bubblewrap_problem() is not None, reason=bubblewrap_problem() or "")
needs_groups = pytest.mark.skipif(hierarchy() is None, reason="the kernel gives this process no control groups")

# Below what a process may have, but not four of them.
_EAT = "/usr/bin/python3 -c 'x = bytearray(60 << 20); import time; time.sleep(600)'"
_EAT_TOGETHER = f"for n in 1 2 3 4; do {_EAT} 2>/dev/null & done; wait -n; echo $?; kill $(jobs -p); wait"


@needs_bubblewrap
@needs_groups
def test_processes_that_together_exceed_the_memory_are_killed_and_the_sandboxes_live_on() -> None:
    spec = SandboxSpec(limits=Limits(memory_mb=100, disk_mb=50))

    async def main() -> tuple[str, str]:
        async with await open_sandbox(spec) as one, await open_sandbox(spec) as other:
            assert "memory:cgroup" in one.capabilities and "memory:rlimit" not in one.capabilities
            shell = await one.shell()
            await shell.run("here=still; echo kept > file", timeout_s=60)
            by_shell, by_exec = [await run(_EAT_TOGETHER, timeout_s=60) for run in (shell.run, one.exec)]
            assert (await shell.run("echo $here", timeout_s=60)).text == "still\n"
            assert await one.read("file") == b"kept\n"
            assert (await other.exec("echo untouched", timeout_s=60)).text == "untouched\n"
            return by_shell.text, by_exec.text

    for text in asyncio.run(main()):
        assert "137" in text.split()
        assert "Killed" in text


@needs_bubblewrap
@needs_groups
def test_files_in_memory_that_no_process_shows_are_bounded_too() -> None:
    fill = (
        "import os\n"
        "for n in range(20):\n"
        "    file = os.memfd_create('hidden')\n"
        "    for m in range(20): os.write(file, bytes(1 << 20))\n"
    )

    async def main() -> int | None:
        async with await open_sandbox(SandboxSpec(limits=Limits(memory_mb=100, disk_mb=50))) as box:
            done = await box.exec(["/usr/bin/python3", "-c", fill], timeout_s=60)
            assert (await box.exec("echo alive", timeout_s=60)).text == "alive\n"
            return done.code

    assert asyncio.run(main()) == 137


@needs_bubblewrap
@needs_groups
def test_a_share_of_the_processors_holds_for_all_commands_together() -> None:
    async def main() -> str:
        async with await open_sandbox(SandboxSpec(limits=Limits(cpus=0.1))) as box:
            if "cpu:cgroup" not in box.capabilities:
                pytest.skip("the kernel gives this process no control groups for CPU time")
            busy = "while :; do :; done"
            await asyncio.gather(*(box.exec(busy, timeout_s=1) for _ in range(2)))
            told = [folder / "cpu.stat" for folder in box._group.folders]  # type: ignore[attr-defined]
            return "".join(file.read_text() for file in told if file.exists())

    lines = dict(line.split() for line in asyncio.run(main()).splitlines())
    assert int(lines["nr_throttled"]) > 0


@needs_bubblewrap
@needs_groups
def test_what_a_killed_process_leaves_is_removed_by_the_next() -> None:
    program = (
        "import asyncio, os, signal\n"
        "from skyrl_gym.sandbox import SandboxSpec, open_sandbox\n"
        "async def main():\n"
        "    box = await open_sandbox(SandboxSpec())\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    killed = subprocess.Popen([sys.executable, "-c", program])
    assert killed.wait(60) == -9
    groups = hierarchy()
    assert groups is not None
    until = time.monotonic() + 60  # what it started may still be dying
    while killed.pid in groups.folders().values() and time.monotonic() < until:
        groups.sweep()
    assert killed.pid not in groups.folders().values()


@needs_bubblewrap
def test_where_there_are_none_memory_is_limited_for_each_process_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (bubblewrap, status):
        monkeypatch.setattr(module, "hierarchy", lambda: None)

    async def main() -> str:
        async with await open_sandbox(SandboxSpec(limits=Limits(memory_mb=100, cpus=0.5)), ledger=Ledger()) as box:
            assert {"memory:cgroup", "cpu:cgroup"}.isdisjoint(box.capabilities)
            assert "memory:rlimit" in box.capabilities
            return (await box.exec(["/usr/bin/python3", "-c", "bytearray(1 << 30)"], timeout_s=60)).text

    assert "MemoryError" in asyncio.run(main())
    told = check_backend("bubblewrap")
    assert "memory:rlimit" in told.capabilities
    assert "systemd-run --user --scope -p Delegate=yes" in told.detail


@needs_bubblewrap
@needs_groups
def test_where_there_are_some_it_is_said() -> None:
    told = check_backend("bubblewrap")
    assert "memory:cgroup" in told.capabilities
    assert "control groups" in told.detail and "systemd-run" not in told.detail


class Machine:
    """What the second version of the hierarchy shows of itself to one process, as files of ours."""

    def __init__(self, folder: Path, group: str, controllers: str = "cpuset cpu memory pids") -> None:
        self.root, self.process, self.own = folder / "cgroup", folder / "process", folder / "cgroup" / group
        self.own.mkdir(parents=True)
        self.process.mkdir()
        (self.process / "mountinfo").write_text(f"31 23 0:28 / {self.root} rw shared:9 - cgroup2 cgroup2 rw\n")
        (self.process / "cgroup").write_text(f"0::/{group}\n")
        for place in (self.root, self.own):
            (place / "cgroup.controllers").write_text(f"{controllers}\n")
        (self.own / "cgroup.procs").write_text("17\n")

    def delegate(self, place: Path) -> None:
        try:
            os.setxattr(place, "user.delegate", b"1")
        except OSError as error:
            pytest.skip(f"temporary folders have no attributes here: {error}")


def test_groups_are_made_in_the_part_that_was_delegated(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "user.slice/run.scope")
    machine.delegate(machine.own)
    found = cgroups._second(machine.process)
    assert found.parents == {"memory": machine.own, "cpu": machine.own}
    assert (machine.own / "cgroup.subtree_control").read_text() == "+memory +cpu"
    assert (machine.own / "main" / "cgroup.procs").read_text() == "17"
    assert not (machine.root / "skyrl").exists()


def test_a_process_that_was_moved_within_its_part_finds_it_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "user.slice/run.scope/main", controllers="memory pids")
    machine.delegate(machine.own.parent)
    (machine.own.parent / "cgroup.controllers").write_text("memory pids\n")
    assert cgroups._second(machine.process).parents == {"memory": machine.own.parent}


def test_root_makes_groups_at_the_top_of_a_machine_and_nobody_in_a_container(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "user.slice/session.scope")
    found = cgroups._second(machine.process)
    assert found.parents == {"memory": machine.root / "skyrl", "cpu": machine.root / "skyrl"}
    (machine.root / "cgroup.type").write_text("domain\n")
    with pytest.raises(OSError, match="is this process's"):
        cgroups._second(machine.process)


def test_a_hierarchy_that_does_not_rule_memory_is_left_as_it_is(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "a.scope", controllers="pids")
    with pytest.raises(OSError, match="memory"):
        cgroups._second(machine.process)
    assert not (machine.root / "skyrl").exists()
