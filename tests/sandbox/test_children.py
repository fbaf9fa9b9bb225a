"""Child processes behind pipes: their end, what is left of them, and what they cost."""

import asyncio
import errno
import os
import threading

import pytest

from skyrl_gym.sandbox.children import spawn
from skyrl_gym.sandbox.processes import children_of

PATH = {"PATH": os.environ["PATH"]}


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9)])
def test_an_end_is_told_once_and_stays_known(script: str, code: int) -> None:
    async def main() -> None:
        child = await spawn("sh", "-c", script, env=PATH)
        for _ in range(2):
            assert await asyncio.wait_for(asyncio.shield(child.ended), 30) == child.returncode == code
        child.close()

    asyncio.run(main())


def test_what_is_written_comes_back_and_no_thread_waits_for_any_end() -> None:
    async def main() -> None:
        children = [await spawn("cat", env=PATH) for _ in range(8)]
        assert [thread.name for thread in threading.enumerate() if thread.name.startswith("waitpid")] == []
        for number, child in enumerate(children):
            child.stdin.write(b"%d" % number * 200_000)
            child.stdin.close()
        assert [len(await child.stdout.read()) for child in children] == [200_000] * 8
        assert [await child.ended for child in children] == [0] * 8
        for child in children:
            child.close()

    asyncio.run(main())


def test_one_that_can_not_be_watched_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(pid: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    async def main() -> None:
        await spawn("sleep", "600", env=PATH)

    before, descriptors = children_of(os.getpid()), len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "pidfd_open", full)
    with pytest.raises(OSError, match="too many open files"):
        asyncio.run(main())
    assert children_of(os.getpid()) == before
    assert len(os.listdir("/proc/self/fd")) == descriptors
