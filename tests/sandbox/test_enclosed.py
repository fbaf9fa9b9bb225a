"""What the holder of a bubblewrap sandbox starts in a place of its own, against what enters the sandbox."""

import asyncio
import os

import pytest

from skyrl_gym.sandbox import Limits, SandboxSpec, bubblewrap_problem, open_sandbox
from skyrl_gym.sandbox.processes import alive, tree_of

pytestmark = pytest.mark.skipif(bubblewrap_problem() is not None, reason=bubblewrap_problem() or "")

# Descriptors, signals, capabilities, filters, limits, mounts and namespaces; not what differs by nature.
_STATE = """
ls /proc/self/fd
grep -E 'Sig(Blk|Ign)|Cap|NoNewPrivs|Seccomp|Uid|Gid|Groups' /proc/self/status
cat /proc/self/limits /proc/self/oom_score_adj
cut -d' ' -f4- /proc/self/mountinfo
readlink /proc/self/ns/net /proc/self/ns/ipc /proc/self/ns/uts
"""

_FILL = """
import os, time
os.setpgid(0, 0)
try:
    while True:
        if not os.fork():
            time.sleep(600)
except BlockingIOError:
    print("full", flush=True)
    time.sleep(600)
"""


def test_a_sandbox_whose_processes_are_used_up_lives_on() -> None:
    async def main() -> None:
        async with await open_sandbox(SandboxSpec(limits=Limits(processes=40))) as box:
            shell = await box.shell()
            fill = f"mkfifo said; /usr/bin/python3 -c '{_FILL}' > said & read -r word < said; echo $word"
            assert (await shell.run(fill, timeout_s=60)).text == "full\n"
            with pytest.raises(OSError, match="used up"):
                await box.write("file", b"too much")
            assert "unavailable" in (await box.exec("true", timeout_s=60)).text
            assert (await shell.run("kill -9 -$!; wait; echo freed", timeout_s=60)).text.endswith("freed\n")
            await box.write("file", b"fits")
            assert await box.read("file") == b"fits"

    asyncio.run(main())


def test_a_placed_shell_and_one_that_entered_are_enclosed_alike() -> None:
    async def main() -> tuple[str, str]:
        async with await open_sandbox(SandboxSpec()) as box:
            shell = await box.shell()
            placed = await shell.run(_STATE, timeout_s=60)
            assert (await shell.run("kill -9 $PPID; kill -9 $$", timeout_s=60)).restarted
            return placed.text, (await shell.run(_STATE, timeout_s=60)).text

    placed, entered = asyncio.run(main())
    assert placed == entered
    assert placed.startswith("0\n1\n2\n3\n")  # the last is of `ls`
    assert placed.splitlines()[4].startswith("Uid")
    assert "\n1000\n" in placed  # the first to go where memory runs out


def test_what_reads_and_writes_files_inherits_nothing_else() -> None:
    async def main() -> bytes:
        async with await open_sandbox(SandboxSpec()) as box:
            return (await box.inspect(["ls", "/proc/self/fd"], timeout_s=60)).output

    assert asyncio.run(main()) == b"0\n1\n2\n3\n"


def test_a_cancelled_command_takes_its_placed_shell_along_and_the_files_stay() -> None:
    async def main() -> None:
        async with await open_sandbox(SandboxSpec()) as box:
            await box.write("file", b"here")
            shell = await box.shell()
            started = tree_of(box._holder.init)  # type: ignore[attr-defined]
            assert (await shell.run("setsid sleep 600 & true", timeout_s=60)).code == 0
            new = tree_of(box._holder.init) - started  # type: ignore[attr-defined]
            assert new
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(shell.run("sleep 600", timeout_s=600), 0.5)
            assert not [pid for pid in new if alive(pid)]
            assert await box.read("file") == b"here"
            assert (await shell.run("echo anew", timeout_s=60)).text == "anew\n"

    asyncio.run(main())


def test_a_sandbox_that_is_closed_leaves_no_descriptor() -> None:
    async def main() -> None:
        async with await open_sandbox(SandboxSpec()):
            pass

    asyncio.run(main())
    before = os.listdir("/proc/self/fd")
    asyncio.run(main())
    assert os.listdir("/proc/self/fd") == before
