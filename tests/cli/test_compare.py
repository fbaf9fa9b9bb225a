"""`skyrl compare` on run folders that `evaluate` made."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.evaluate import evaluate
from skyrl_gym.evaluate.files import write_json
from skyrl_gym.messages import ToolCall
from skyrl_gym.policy import ScriptedPolicy
from skyrl_gym.registration import make_env, register_file

Skyrl = Callable[..., Any]


@pytest.fixture
def two_runs(colours: str, tmp_path: Path) -> tuple[str, str]:
    register_file(colours)
    for colour in ("white", "green"):
        policy = ScriptedPolicy(lambda prompt, colour=colour: ToolCall("name_colour", {"colour": colour}))
        tasks = make_env("colour-v0").tasks
        asyncio.run(evaluate("colour-v0", policy, tasks=tasks, samples=2, out_dir=tmp_path / colour))
    return str(tmp_path / "white"), str(tmp_path / "green")


def test_it_prints_what_changed(skyrl: Skyrl, two_runs: tuple[str, str]) -> None:
    ran = skyrl("compare", *two_runs)
    assert ran.status == 0, ran.err
    assert "3 tasks compared." in ran.out
    assert "Mean reward +0.000 [-2.484, +2.484], p = 1 (permutation over tasks): no difference is shown." in ran.out
    assert "Tasks gained 1, lost 1, p = 1 (McNemar, exact)." in ran.out
    assert "gained grass: 0/2 passed, then 2/2" in ran.out and "lost snow: 2/2 passed, then 0/2" in ran.out
    assert "pass^2" in ran.out


def test_json_has_every_task(skyrl: Skyrl, two_runs: tuple[str, str]) -> None:
    found = json.loads(skyrl("compare", *two_runs, "--json").out)
    assert found["tasks"] == 3 and found["solved"] == {"gained": 1, "lost": 1, "p": 1.0}
    assert {task["id"]: task["after"]["reward"] for task in found["by_task"].values()} == {
        "snow": 0.0,
        "coal": 0.0,
        "grass": 1.0,
    }
    assert set(found["pass_at"]) == {"1", "2"}


def test_a_folder_that_is_no_run_is_refused(skyrl: Skyrl, two_runs: tuple[str, str]) -> None:
    ran = skyrl("compare", two_runs[0], "nowhere")
    assert ran.status == 2 and "nowhere is no run folder" in ran.err


def test_suites_are_compared_entry_by_entry(skyrl: Skyrl, two_runs: tuple[str, str], tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_json(tmp_path / name / "run.json", {"kind": "suite", "config": {"entries": ["snow", name]}})
    shutil.copytree(two_runs[0], tmp_path / "one" / "snow")
    shutil.copytree(two_runs[1], tmp_path / "other" / "snow")
    ran = skyrl("compare", str(tmp_path / "one"), str(tmp_path / "other"))
    assert ran.status == 0, ran.err
    assert ran.out.startswith("\nsnow\n") and "Tasks gained 1, lost 1" in ran.out
    assert set(json.loads(skyrl("compare", str(tmp_path / "one"), str(tmp_path / "other"), "--json").out)) == {"snow"}
    mixed = skyrl("compare", str(tmp_path / "one"), two_runs[1])
    assert mixed.status == 2 and "have no entry in common" in mixed.err
