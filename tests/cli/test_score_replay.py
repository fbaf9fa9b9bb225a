"""`skyrl score` and `skyrl replay` on a run of the memory suite."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.evaluate import evaluate, open_run
from skyrl_gym.messages import ToolCall
from skyrl_gym.policy import ScriptedPolicy
from skyrl_gym.policy.base import Prompt
from skyrl_gym.registration import make_env

Skyrl = Callable[..., Any]
KWARGS = {"document_words": 60, "chunk_words": 30, "families": ["khop"], "task_count": 4}


def guess(prompt: Prompt) -> ToolCall:
    if "update_memory" in prompt.messages[-1].text or "ection" in prompt.messages[-1].text:
        return ToolCall("update_memory", {"memory": "a note"})
    return ToolCall("answer", {"text": "Anna"})


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tasks = make_env("skyrl/memory-v0", **KWARGS).tasks
    where: dict[str, Any] = {"out_dir": tmp_path / "memory", "env_kwargs": KWARGS, "samples": 2}
    asyncio.run(evaluate("skyrl/memory-v0", ScriptedPolicy(guess), tasks=tasks, **where))
    return tmp_path / "memory"


def plant(folder: Path, old: str, new: str) -> None:
    journal = folder / "trajectories.jsonl"
    assert old in journal.read_text()
    journal.write_text(journal.read_text().replace(old, new, 1))


def test_replay_of_an_unchanged_run_ends_with_0(skyrl: Skyrl, run_folder: Path) -> None:
    ran = skyrl("replay", "memory")
    assert ran.status == 0, ran.err
    assert ran.out.startswith("8 the same, 0 different.")


def test_replay_shows_a_planted_difference_and_ends_with_1(skyrl: Skyrl, run_folder: Path) -> None:
    plant(run_folder, "Memory: a note", "Memory: a \\u001b[31mnote")
    ran = skyrl("replay", "memory")
    assert ran.status == 1
    assert ran.out.startswith("7 the same, 1 different.")
    assert "first difference at turn" in ran.out
    assert "\n-" in ran.out and "a \\x1b[31mnote" in ran.out and "\x1b[31mnote" not in ran.out
    found = json.loads(skyrl("replay", "memory", "--json").out)
    assert found["same"] == 7 and found["different"][0]["step"].startswith("turn")
    other = {trajectory.task_id for trajectory in open_run(run_folder).trajectories()}
    other -= {found["different"][0]["task_id"]}
    assert skyrl("replay", "memory", "--task", other.pop()).status == 0
    assert skyrl("replay", "memory", "--ignore", r"\S*note").status == 0


def test_wrong_words_are_one_line(skyrl: Skyrl, run_folder: Path) -> None:
    assert "has no trajectory of a task 'x'" in skyrl("replay", "memory", "--task", "x").err
    assert "takes a regular expression" in skyrl("replay", "memory", "--ignore", "(").err
    assert "exists already" in skyrl("score", "memory", "--out", "memory").err


def test_score_makes_a_run_folder_of_its_own(skyrl: Skyrl, run_folder: Path) -> None:
    plant(run_folder, '"reward":0.0,"metrics"', '"reward":1.0,"metrics"')
    ran = skyrl("score", "memory")
    assert ran.status == 0, ran.err
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("score-memory-")
    assert "graded anew" in ran.out and "0.125" in ran.out and "replay_diverged" in ran.out
    scored = open_run(folder)
    assert scored.summary is not None and scored.summary.reward.value == 0.0 and scored.summary.judged == 8
    assert skyrl("replay", str(folder)).status == 0
