"""Bugs that are planted one at a time, to see that the tests of the engine notice: `python -m tests.rollout.mutants`.

Each is a change of one line or two in a copy of the tree. The table says which test caught it; the command fails when
one is left. Where a line that is to be changed has moved on, the bug has to be planted anew.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LIMIT_S = 300
ENGINE = ("tests/rollout/test_engine_properties.py",)
JOURNAL = ("tests/rollout/test_journal.py", "-k", "torn")
RESUME = ("tests/evaluate/test_evaluation.py", "-k", "judged_stays or complete_run")


@dataclass(frozen=True)
class Mutant:
    """A bug: in `file`, `old` (there once) becomes `new`; `tests` are to fail."""

    bug: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = ENGINE

    def plant(self, tree: Path) -> None:
        """Changes the file below `tree`."""
        path = tree / "skyrl_gym" / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.bug}: {self.file} has {text.count(self.old)} times, in place of once:\n{self.old}")
        path.write_text(text.replace(self.old, self.new))


MUTANTS = (
    Mutant(
        "an environment is leaked by a cancellation", "rollout/attempt.py",
        "            if env is not None:\n                await self._close(env)\n        return",
        "        if env is not None:\n            await self._close(env)\n        return",
    ),
    Mutant(
        "a trajectory is lost when its grader raises", "rollout/engine.py",
        "        self._hand_over(trajectory)\n        if trajectory.valid",
        "        if trajectory.stop_reason is not StopReason.GRADE_ERROR:\n"
        "            self._hand_over(trajectory)\n        if trajectory.valid",
    ),
    Mutant(
        "a retry gives a second result", "rollout/engine.py",
        "        self._tally.retries += not free\n",
        "        self._tally.retries += not free\n        self._hand_over(trajectory)\n",
    ),
    Mutant(
        "a place in a stage is not given back", "rollout/places.py",
        "        self.leave()\n        await slots", "        self._held = None\n        await slots",
    ),
    Mutant(
        "a place that came together with a cancellation is kept", "rollout/schedule.py",
        "            if not turn.cancelled():\n                self.release()",
        "            if False:\n                self.release()",
        ("tests/rollout/test_engine_properties.py", "tests/rollout/test_reported.py", "tests/rollout/test_slots.py"),
    ),
    Mutant(
        "what is prepared ahead has no bound", "rollout/engine.py",
        "            and prepared < limits.ready + max(0, self.running.limit - self.running.used)\n", "",
    ),
    Mutant(
        "more environments live than may", "rollout/engine.py",
        "            len(self._live) < limits.live\n", "            len(self._live) <= limits.live\n",
    ),
    Mutant(
        "one retry too many", "rollout/engine.py",
        "attempt.number < self.runner.limits.retries", "attempt.number <= self.runner.limits.retries",
    ),
    Mutant(
        "what was excluded gets a reward", "rollout/attempt.py",
        "reward=earned if reason.valid else None", "reward=earned if reason.valid else 0.0",
    ),
    Mutant(
        "an exclusion closes the group of its peers", "rollout/engine.py",
        "        if trajectory.valid and self._backlog.has_enough(attempt.request):",
        "        if not trajectory.valid:",
    ),
    Mutant(
        "a completion that was cut is executed", "rollout/episode.py",
        'if completion.finish_reason == "length":', 'if completion.finish_reason == "never":',
    ),
    Mutant(
        "the deadline of a stage is not kept", "rollout/stage.py",
        "asyncio.wait({task}, timeout=limit_s)", "asyncio.wait({task})",
    ),
    Mutant(
        "a teardown is not waited for", "rollout/attempt.py",
        "self.leaked, interrupted = await close_in_time(closing, clocks.teardown_s, stop_s=clocks.stop_s)",
        "self.leaked, interrupted = await close_in_time(closing, 0.0, stop_s=0.0)",
    ),
    Mutant(
        "a teardown is done twice", "env.py",
        "            self._open = self._ready = False\n", "            self._ready = False\n",
        ("tests/core/test_env.py",),
    ),
    Mutant(
        "a stage that cancels itself counts as a cancellation of the run", "rollout/stage.py",
        '        raise EnvError(f"{task.get_name()} was cancelled from inside")',
        "        raise asyncio.CancelledError",
    ),
    Mutant(
        "the run's clock drops what was under way", "rollout/engine.py",
        "self.delivery.flush(tuple(cut))", "self.delivery.flush()",
    ),
    Mutant(
        "a result is yielded before it is on disk", "rollout/delivery.py",
        "            batch = tuple(self._finished)\n",
        "            batch = tuple(self._finished)\n            self._pass_on(len(batch))\n",
    ),
    Mutant(
        "a torn line is taken for a trajectory", "rollout/journal.py",
        '            if not line.endswith(b"\\n"):\n                return\n', "", JOURNAL,
    ),
    Mutant(
        "a torn line is written on", "rollout/journal.py",
        "        _cut_torn_line(self._file)\n", "", JOURNAL,
    ),
    Mutant(
        "a resume plays again what is finished", "evaluate/evaluation.py",
        "if request.key not in scores.done]", "]", RESUME,
    ),
)  # fmt: skip


def pytest_configure(config: Any) -> None:
    """As a plugin of the runs on changed trees: that a test fails is enough, without the least that makes it fail."""
    from hypothesis import Phase, settings

    settings.register_profile("mutants", phases=[Phase.generate], database=None)
    settings.load_profile("mutants")


def caught_by(mutant: Mutant, folder: Path) -> str:
    """The test that fails in a tree with the bug; empty where none does."""
    tree = folder / "tree"
    skipped = shutil.ignore_patterns(".*", "__pycache__", "runs", "*.egg-info")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=skipped)
    mutant.plant(tree)
    options = ("-x", "-q", "--tb=no", "--show-capture=no", "-p", "no:cacheprovider", "-p", "tests.rollout.mutants")
    command = [sys.executable, "-m", "pytest", *options, *mutant.tests]
    settings = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    try:
        ran = subprocess.run(command, cwd=tree, env=settings, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"no test ends within {LIMIT_S} s"
    failed = re.search(r"^(?:FAILED|ERROR) \S+::(\S+)", ran.stdout, re.MULTILINE)
    if failed is None and ran.returncode:
        raise RuntimeError(f"{mutant.bug}: the tests could not be run:\n{ran.stdout[-2_000:]}{ran.stderr[-2_000:]}")
    return failed[1] if failed else ""


def main(words: Sequence[str]) -> None:
    """Plants the bugs whose description has one of the words, or all."""
    left = 0
    for mutant in MUTANTS:
        if words and not any(word in mutant.bug for word in words):
            continue
        with tempfile.TemporaryDirectory() as folder:
            test = caught_by(mutant, Path(folder))
        left += not test
        sys.stdout.write(f"{mutant.bug:<64} {test or 'NOT CAUGHT'}\n")
        sys.stdout.flush()
    if left:
        sys.exit(f"{left} not caught")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="plant those whose description has one of these")
    main(parser.parse_args().words)
