"""Faults that evaluations elsewhere were caught by: resets that fail or hang, retries, scratch left behind."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from skyrl_gym import TaskSet, registration
from skyrl_gym.evaluate import Summary, evaluate, open_run
from skyrl_gym.evaluate.known import KnownPlayer
from skyrl_gym.rollout import Deadlines, RolloutLimits

FAULTY = '''
"""An environment for tests: its reset fails or hangs as often as the task says."""
import asyncio, shutil, tempfile
from pathlib import Path
from skyrl_gym import Probe, TextEnv, ToolCall, finish, tool
from skyrl_gym.errors import SandboxLost


class PageCrashed(SandboxLost):
    """A class that no list names."""


class FaultyEnv(TextEnv):
    """Goes to a page."""

    async def setup(self, task):
        self.scratch = Path(tempfile.mkdtemp(dir=task.data["scratch"]))
        (self.scratch / "page").write_bytes(b"0" * 1000)
        log = Path(task.data["log"])
        with log.open("a") as file:
            file.write(f"{len(list(Path(task.data['scratch']).iterdir()))}\\n")
        if len(log.read_text().splitlines()) <= task.data["failures"]:
            if task.data["how"] == "hang":
                await asyncio.sleep(600)
            raise PageCrashed("net::ERR_CONNECTION_RESET")
        return "You are there."

    @tool
    def leave(self):
        """Leaves."""
        return finish()

    def grade(self):
        return 1.0

    def teardown(self):
        shutil.rmtree(self.scratch)

    def probes(self, task):
        return {"gold": Probe([ToolCall("leave")])}
'''


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    folder = tmp_path / "registry"
    folder.mkdir()
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(registration, "_ENTRIES", dict(registration._ENTRIES))
    monkeypatch.setattr(sys, "path", list(sys.path))
    (folder / "faulty_for_test.py").write_text(FAULTY)
    (folder / "registry.yaml").write_text("faulty-v0: {entry_point: 'faulty_for_test:FaultyEnv', summary: Goes.}\n")
    registration.register_file(folder / "registry.yaml")
    yield "faulty-v0"
    gym.registry.pop("faulty-v0", None)
    sys.modules.pop("faulty_for_test", None)


def run(env_id: str, where: Path, count: int = 1, failures: int = 0, how: str = "fail", live: int = 1) -> Summary:
    rows = [
        {
            "id": f"t{i}",
            "scratch": str(where / "scratch"),
            "log": str(where / f"log{i}"),
            "failures": failures,
            "how": how,
        }
        for i in range(count)
    ]
    settings: dict[str, Any] = {
        "limits": RolloutLimits(live=live, retries=2),
        "deadlines": Deadlines(setup_s=0.3 if how == "hang" else 60),
    }
    tasks = TaskSet.from_rows(rows)
    return asyncio.run(evaluate(env_id, KnownPlayer(), tasks=tasks, samples=1, out_dir=where / "run", **settings))


@pytest.mark.parametrize("how", ["fail", "hang"])
def test_a_reset_that_fails_or_hangs_is_tried_again_within_the_budget(faulty: str, tmp_path: Path, how: str) -> None:
    """Also where its error is only a subclass of a known one."""
    summary = run(faulty, tmp_path, failures=2, how=how)
    assert summary.reward.value == 1.0
    assert len((tmp_path / "log0").read_text().splitlines()) == 3
    (trajectory,) = open_run(tmp_path / "run").trajectories()
    assert trajectory.attempt == 2


@pytest.mark.parametrize(("how", "ending"), [("fail", "sandbox_lost"), ("hang", "setup_timeout")])
def test_beyond_the_budget_it_is_a_typed_error_and_no_zero(faulty: str, tmp_path: Path, how: str, ending: str) -> None:
    summary = run(faulty, tmp_path, failures=9, how=how)
    assert summary.starved and summary.excluded_by == {ending: 1} and summary.reward.value is None
    assert len((tmp_path / "log0").read_text().splitlines()) == 3


def test_scratch_is_bounded_while_running_and_gone_afterwards(faulty: str, tmp_path: Path) -> None:
    assert run(faulty, tmp_path, count=40, live=4).judged == 40
    seen = [int(line) for log in tmp_path.glob("log*") for line in log.read_text().splitlines()]
    assert len(seen) == 40 and max(seen) <= 4
    assert not list((tmp_path / "scratch").iterdir())
