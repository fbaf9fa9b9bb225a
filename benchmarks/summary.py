"""Memory and time of summarising a journal of 100,000 trajectories, each of another task.

The bound is 500 MB, whatever the trajectories hold.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from skyrl_gym.errors import StopReason
from skyrl_gym.messages import ToolCall, assistant, tool_result, user
from skyrl_gym.rollout import Trajectory, Transition, Turn
from skyrl_gym.rollout.journal import encode_line

BOUND_MB = 500
TURNS = 4
TOKENS = 40
MEASURE = """
import resource, sys
from pathlib import Path
from skyrl_gym.evaluate import summarise
from skyrl_gym.rollout import read_journal
summary = summarise(read_journal(Path(sys.argv[1])), (1, 2, 4, 8))
summary.to_json()
print(summary.total, summary.judged, summary.tasks, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def make(index: int, samples: int) -> Trajectory:
    """One of several trajectories of a task, with token ids and log-probabilities; one in fifty was not judged."""
    rng = random.Random(index)
    call = ToolCall("look", {"at": "x" * 60}, "c1")
    ids = tuple(rng.randrange(50_000) for _ in range(TOKENS))
    step = Transition(ids, ids, tuple(-rng.random() for _ in ids))
    turns = (Turn(assistant("I look.", call), (tool_result(call, "seen " * 60),), step),) * TURNS
    task = str(index // samples)
    return Trajectory(
        env_id="bench-v0",
        task_id=f"task-{task}",
        task_hash=f"{index // samples:016x}",
        group=task,
        sample=index % samples,
        stop_reason=StopReason.DONE if index % 50 else StopReason.SANDBOX_LOST,
        opening=(user("What is there? " * 20),),
        turns=turns,
        reward=float(rng.random() < 0.4) if index % 50 else None,
        metrics={"f1": rng.random()},
        policy="model",
        seconds={"setup": 0.5, "run": 1.0, "grade": 0.1},
    )


def main(count: int = 100_000, samples: int = 1) -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "trajectories.jsonl"
        lines = [encode_line(make(i, samples)) for i in range(400)]
        with journal.open("wb") as file:
            for i in range(count):
                # A journal of distinct keys without making each trajectory: only its task and sample are replaced.
                file.write(rekeyed(lines[i % len(lines)], i, samples))
        size = journal.stat().st_size / 1e6
        began = time.perf_counter()
        command = [sys.executable, "-c", MEASURE, str(journal)]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds = time.perf_counter() - began
        total, judged, tasks, peak = map(int, ran.stdout.split())
    peak_mb = peak * 1024 / 1e6
    print(f"{total:,} trajectories of {tasks:,} tasks, {judged:,} judged; journal {size:,.0f} MB")
    print(f"peak memory {peak_mb:,.0f} MB (bound {BOUND_MB} MB), {seconds:.0f} s, {seconds / total * 1e6:.0f} us each")
    if peak_mb > BOUND_MB:
        sys.exit(1)


def rekeyed(line: bytes, index: int, samples: int) -> bytes:
    """The line of another task and sample."""
    data = line.decode()
    old = json.loads(data[: data.index(',"group"')] + "}")
    task = index // samples
    data = data.replace(f'"task_hash":"{old["task_hash"]}"', f'"task_hash":"{task:016x}"', 1)
    return data.replace(f'"task_id":"{old["task_id"]}"', f'"task_id":"task-{task}"', 1).encode()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="trajectories")
    parser.add_argument("--samples", type=int, default=1, help="of each task")
    given = parser.parse_args()
    main(given.count, given.samples)
