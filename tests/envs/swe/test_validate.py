"""What can be said of a task before an agent gets it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym import Task, TaskSet
from skyrl_gym.envs.swe.env import SweEnv
from skyrl_gym.envs.swe.validate import main, validate_task
from skyrl_gym.errors import TaskError


def row(**changes: Any) -> dict[str, Any]:
    return {**SweEnv().load_tasks("test")[0].data, **changes}


def test_a_good_task() -> None:
    found = asyncio.run(validate_task(Task.from_row(row())))
    assert (found.valid, found.gold, found.nothing, found.problems) == (True, 1.0, 0.0, ())


def test_a_test_that_needs_no_repair_is_named() -> None:
    kept = row()["PASS_TO_PASS"][0]
    found = asyncio.run(validate_task(Task.from_row(row(FAIL_TO_PASS=[kept]))))
    assert not found.valid
    assert found.problems == (f"1 tests of FAIL_TO_PASS pass without it: {kept}",)


def test_a_test_that_is_not_there_is_named() -> None:
    found = asyncio.run(validate_task(Task.from_row(row(PASS_TO_PASS=["tests/test_a.py::b"]))))
    assert not found.valid
    assert found.problems == ("1 tests fail with the gold patch: tests/test_a.py::b",)


def test_a_gold_patch_that_does_not_fit_is_refused() -> None:
    patch = row()["patch"] + "--- /dev/null\n+++ b/setup.cfg\n@@ -0,0 +1 @@\n+[metadata]\n"
    with pytest.raises(TaskError, match="does not apply"):
        asyncio.run(validate_task(Task.from_row(row(patch=patch))))


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_every_real_task_is_valid(real_tasks: TaskSet) -> None:
    for task in real_tasks:
        found = asyncio.run(validate_task(task))
        assert found.valid, (task.id, found.problems)


def test_it_is_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text("\n".join(json.dumps(r) for r in (row(), row(repo="a/b", instance_id="a__b-1"))) + "\n")
    assert asyncio.run(main(str(file))) == 1
    good, bad = capsys.readouterr().out.splitlines()
    assert good == f"{row()['instance_id']}\t1\t0\tok"
    assert bad.startswith("a__b-1\t-\t-\ttask a__b-1: no source for 'a/b'")
