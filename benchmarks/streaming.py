"""Memory and pace of 100,000 trajectories that go through the runner to the journal, and of a resume over that journal.

Two turns each, no work in them; the reader drops what it gets. What is resident is told at 10,000, 50,000 and 100,000:
it must stay where it is. The resume reads the journal once for the keys of what is done, in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

from skyrl_gym import Task, TextEnv, ToolCall, finish, tool
from skyrl_gym.policy import Prompt, ScriptedPolicy
from skyrl_gym.rollout import Journal, RolloutLimits, RolloutRequest, Runner

COUNT, LIVE = 100_000, 256
MOST_GROWTH_MB = 32  # from a tenth of the run to its end
RESUME = """
import resource, sys
from skyrl_gym.rollout import read_journal
done = {trajectory.key for trajectory in read_journal(sys.argv[1])}
print(len(done), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


class Two(TextEnv):
    """Over after two turns."""

    async def setup(self, task: Task) -> str:
        return "Look, then end."

    @tool
    async def look(self) -> str:
        """Looks."""
        return "nothing to be seen. " * 20

    @tool
    async def end(self) -> object:
        """Ends."""
        return finish()

    async def grade(self) -> float:
        return 1.0


def answer(prompt: Prompt) -> ToolCall:
    return ToolCall("look" if len(prompt.messages) == 1 else "end")


def requests(count: int) -> Iterator[RolloutRequest]:
    return (RolloutRequest("two", Task(f"t{i}", {"n": i}), f"t{i}") for i in range(count))


def resident_mb() -> float:
    """What this process holds in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


async def play(journal: Journal, count: int) -> dict[int, float]:
    """What is resident, by the number of trajectories read."""
    runner = Runner(
        ScriptedPolicy(answer), limits=RolloutLimits.bounded(LIVE), journal=journal, make=lambda env_id, **_: Two()
    )
    told, read = {count // 10, count // 2, count}, 0
    held: dict[int, float] = {}
    async with aclosing(runner.run(requests(count))) as found:
        async for _ in found:
            read += 1
            if read in told:
                held[read] = resident_mb()
    return held


def main(count: int = COUNT) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        began, cpu = time.perf_counter(), time.process_time()
        with Journal(path) as journal:
            held = asyncio.run(play(journal, count))
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        print(f"load {os.getloadavg()[0]:.1f}; {count:,} trajectories, {LIVE} at once, journal {size_mb(path):,.0f} MB")
        print(f"{count / took:,.0f} trajectories a second, {cpu / count * 1e6:,.0f} us of CPU each")
        for read, mb in held.items():
            print(f"resident after {read:>8,}: {mb:>6.1f} MB")
        began = time.perf_counter()
        command = [sys.executable, "-c", RESUME, str(path)]
        done, peak = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
        print(f"resume reads {done:,} keys in {time.perf_counter() - began:.1f} s, peak {peak * 1024 / 1e6:.0f} MB")
    if held[count] - held[count // 10] > MOST_GROWTH_MB:
        sys.exit(f"memory grew by more than {MOST_GROWTH_MB} MB")


def size_mb(path: Path) -> float:
    return path.stat().st_size / 1e6


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="trajectories")
    main(parser.parse_args().count)
