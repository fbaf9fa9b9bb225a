"""Instances, injected bugs, shipped tasks."""

import ast
import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym import Task
from skyrl_gym.envs.swe.env import SweEnv
from skyrl_gym.envs.swe.factory import candidates, make_task
from skyrl_gym.envs.swe.grading import TestReport, is_protected, score
from skyrl_gym.envs.swe.inject import mutations
from skyrl_gym.envs.swe.instance import read_instance
from skyrl_gym.errors import TaskError

ROW = {
    "instance_id": "a__b-1",
    "repo": "a/b",
    "patch": "",
    "problem_statement": "p",
    "FAIL_TO_PASS": ["tests/t.py::a"],
    "PASS_TO_PASS": "[]",
}


def test_both_forms_of_test_lists_are_read() -> None:
    listed = read_instance(Task.from_row(ROW))
    as_text = read_instance(Task.from_row({**ROW, "FAIL_TO_PASS": json.dumps(ROW["FAIL_TO_PASS"]), "PASS_TO_PASS": []}))
    assert listed.fail_to_pass == as_text.fail_to_pass == ("tests/t.py::a",)
    assert listed.tests == ("tests/t.py",)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"FAIL_TO_PASS": "[broken"}, "FAIL_TO_PASS is a list"),
        ({"FAIL_TO_PASS": [1]}, "FAIL_TO_PASS is a list of test ids"),
        ({"FAIL_TO_PASS": []}, "FAIL_TO_PASS is empty"),
        ({"repo": 3}, "repo is a text"),
        ({"sdist_base": {}}, "sdist_base is an object"),
    ],
)
def test_a_broken_row_is_named_by_its_field(change: dict[str, Any], says: str) -> None:
    with pytest.raises(TaskError, match=f"a__b-1.*{says}"):
        read_instance(Task.from_row({**ROW, **change}))


def test_a_missing_field_is_named() -> None:
    with pytest.raises(TaskError, match="'repo' is missing"):
        read_instance(Task.from_row({k: v for k, v in ROW.items() if k != "repo"}))


@pytest.mark.parametrize(
    ("outcomes", "reward"),
    [
        ({"f": "passed", "k": "passed"}, 1.0),
        ({"f": "xfailed", "k": "skipped"}, 1.0),
        ({"f": "skipped", "k": "passed"}, 0.0),
        ({"f": "failed", "k": "passed"}, 0.0),
        ({"f": "passed", "k": "failed"}, 0.0),
        ({"f": "passed"}, 0.0),
        ({}, 0.0),
    ],
)
def test_the_reward_needs_every_test(outcomes: dict[str, str], reward: float) -> None:
    instance = read_instance(Task.from_row({**ROW, "FAIL_TO_PASS": ["f"], "PASS_TO_PASS": ["k"]}))
    assert score(instance, TestReport(True, outcomes))[0] == reward
    assert score(instance, TestReport(False, outcomes))[0] == 0.0


def test_names_from_logs_match_folded_and_cut() -> None:
    instance = read_instance(Task.from_row({**ROW, "FAIL_TO_PASS": ["t[a b]", "t[long"], "PASS_TO_PASS": []}))
    held = {"t[a     b]": "passed", "t[long one]": "passed", "t[long two]": "passed"}
    assert score(instance, TestReport(True, held))[0] == 1.0
    assert score(instance, TestReport(True, {**held, "t[long two]": "failed"}))[0] == 0.0


@pytest.mark.parametrize(
    ("path", "protected"),
    [
        ("src/pkg/latest/mod.py", False),
        ("pkg/contest.py", False),
        ("pkg/core.py", False),
        ("tests/helper.py", True),
        ("pkg/test/x.py", True),
        ("pkg/test_x.py", True),
        ("pkg/x_test.py", True),
        ("conftest.py", True),
        ("a/conftest.py", True),
        ("setup.cfg", True),
        ("sitecustomize.py", True),
        ("json.py", True),
        ("unittest/__init__.py", True),
        ("x.pth", True),
        ("pkg/__pycache__/core.cpython-311.pyc", True),
        (".git/hooks/pre-commit", True),
    ],
)
def test_what_belongs_to_tests_and_configuration(path: str, protected: bool) -> None:
    assert is_protected(path) is protected


def test_mutations_are_small_compile_and_cover_all_kinds() -> None:
    source = (
        'def f(a, b):\n    """Ünïcode."""\n    if not a:\n        return b\n    if a < b and b in (1, 2):\n'
        "        return max(a, b) + 1, a\n    return a - b\n"
    )
    found = mutations(source)
    kinds = {"comparison", "arithmetic", "boolean", "constant", "guard", "condition", "arguments", "returned"}
    assert {mutation.kind for mutation in found} == kinds
    for mutation in found:
        changed = mutation.apply(source)
        ast.parse(changed)
        assert changed != source
        assert abs(len(changed) - len(source)) < 70
    assert found == mutations(source)


def test_a_seed_gives_the_same_candidates() -> None:
    assert candidates("versions", 3) == candidates("versions", 3)
    assert candidates("versions", 3) != candidates("versions", 4)


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_shipped_tasks_are_many_different_and_leak_nothing(split: str) -> None:
    tasks = SweEnv().load_tasks(split)
    instances = [read_instance(task) for task in tasks]
    assert len({task.id for task in tasks}) == len(tasks) >= 18
    assert len(Counter(i.repo for i in instances)) == 6
    for instance in instances:
        assert instance.pass_to_pass
        removed = [line[1:].strip() for line in instance.patch.splitlines() if line[:1] == "+" and line[:3] != "+++"]
        assert all(line not in instance.problem_statement for line in removed if len(line) > 12)


def test_the_splits_share_no_task() -> None:
    env = SweEnv()
    train, test = ({task.data["patch"] for task in env.load_tasks(split)} for split in ("train", "test"))
    assert not train & test


def test_a_shipped_row_can_be_made_again_byte_for_byte() -> None:
    row = dict(SweEnv().load_tasks("train")[0].data)
    package = str(row["repo"]).rpartition("/")[2]
    for file, _, mutation in candidates(package, 0):
        source = (Path(__file__).parents[3] / "envs/swe/data/packages" / package / file).read_text()
        from skyrl_gym.envs.swe.factory import _row

        if _row(package, file, source, mutation)["patch"] == row["patch"]:
            assert asyncio.run(make_task(package, file, mutation)) == row
            return
    pytest.fail("no candidate gives the shipped patch")
