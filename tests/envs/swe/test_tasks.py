"""Instances, injected bugs, shipped tasks."""

import ast
import asyncio
import json
import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyrl_gym import Task
from skyrl_gym.envs.swe.changes import belongs_to_tests, changes_of, files_of, lay_on, taken_over
from skyrl_gym.envs.swe.diffs import MOST_BYTES, MOST_CHARACTERS, diff, held_in
from skyrl_gym.envs.swe.env import SweEnv
from skyrl_gym.envs.swe.factory import candidates, generate_tasks
from skyrl_gym.envs.swe.grading import TestReport, score
from skyrl_gym.envs.swe.inject import mutations
from skyrl_gym.envs.swe.instance import read_instance
from skyrl_gym.envs.swe.origins import shipped
from skyrl_gym.envs.swe.patches import apply_patch
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
        ({"FAIL_TO_PASS": [1]}, "FAIL_TO_PASS is a list of texts"),
        ({"FAIL_TO_PASS": []}, "FAIL_TO_PASS is empty"),
        ({"repo": 3}, "repo is a text"),
        ({"sdist_base": {}}, "sdist_base is an object"),
        ({"sdist_base": {"filename": "x", "sha256": "1"}}, "sdist_base.sha256 is 64 hex digits"),
        ({"sdist_base": {"filename": "../x", "sha256": "0" * 64}}, "sdist_base.filename is the name of a file"),
        ({"test_files": "tests"}, "test_files is a list"),
        ({"test_patch": ["x"]}, "test_patch is a text"),
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
        ("cheat.egg-info/entry_points.txt", True),
        ("pytest.toml", True),
        ("pkg/__pycache__/core.cpython-311.pyc", True),
        (".git/hooks/pre-commit", True),
        (".pytest_cache/v/cache/lastfailed", True),
        ("setup.py", True),
        ("cmd/root.go", False),
        ("cmd/root_test.go", True),
        ("src/App.spec.tsx", True),
        ("src/main/java/Tester.java", False),
        ("src/main/java/AppTest.java", True),
        ("package.json", True),
        ("jest.config.js", True),
    ],
)
def test_what_belongs_to_tests_by_its_name(path: str, protected: bool) -> None:
    assert belongs_to_tests(path) is protected


def test_what_is_taken_over_follows_the_patches_of_the_task() -> None:
    def diff(*names: str) -> str:
        return "".join(f"--- a/{name}\n+++ b/{name}\n@@ -0,0 +1 @@\n+x\n" for name in names)

    row = {**ROW, "patch": diff("django/test/client.py", "setup.cfg"), "test_patch": diff("pkg/data.txt")}
    instance = read_instance(Task.from_row(row))
    names = ["django/test/client.py", "django/test/other.py", "setup.cfg", "pkg/data.txt", "tests/t.py", "pkg/a.py"]
    assert sorted(taken_over(instance, dict.fromkeys(names))) == ["django/test/client.py", "pkg/a.py"]


def test_changes_that_have_no_place_or_lead_out_of_the_tree_are_left_out(tmp_path: Path) -> None:
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    (tree / "folder").mkdir(parents=True)
    outside.mkdir()
    (outside / "x").write_text("kept")
    (tree / "out").symlink_to(outside)
    (tree / "link").symlink_to(outside / "x")
    (tree / "file").write_text("")
    (tree / "was").write_text("a file")
    lay_on(
        tree, {"out/x": None, "link": b"", "file/x": b"", "folder": b"", "a" * 300: b"", "was/now": b"1", "was": None}
    )
    assert (outside / "x").read_text() == "kept"
    assert sorted(files_of(tree)) == ["file", "was/now"]


@given(st.dictionaries(st.sampled_from(["a.py", "b/c.py", "b/d", "\udcff"]), st.binary(max_size=3)))
def test_changes_laid_on_the_tree_give_what_was_held(held: dict[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        lay_on(tree, {"a.py": b"1", "b/c.py": b"2", "gone": b"3"})
        lay_on(tree, changes_of(tree, held))
        assert {name: path.read_bytes() for name, path in files_of(tree).items()} == held


def test_a_diff_of_changes_makes_them_again(tmp_path: Path) -> None:
    lay_on(tmp_path, {"a.py": b"1\n2\n3", "b/c.py": b"x\r\n\x0cy\n", "gone": b"3\n", ".gitattributes": b"* -diff\n"})
    held = {"a.py": b"1\n4\n3\n", "b/c.py": b"x\r\nz\n", "new": b"n\ndiff --git a/0 b/0\n@@ x", ".gitattributes": b""}
    changes = {**held, "gone": None}
    apply_patch(tmp_path, diff(held_in(tmp_path, changes), changes))
    assert {name: path.read_bytes() for name, path in files_of(tmp_path).items()} == held


def test_a_diff_is_of_the_files_that_it_names_and_of_no_others(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    lay_on(tree, {"bin": b"\0\1", "old.py": "é\n".encode("latin-1")})
    (tmp_path / "secret").write_text("of the host\n")
    (tree / "link").symlink_to(tmp_path / "secret")
    changes = {"bin": b"\0\2", "old.py": None, "../secret": b"x\n", "link": b"y\n", "n" * 5_000: b"z\n"}
    shown = diff(held_in(tree, changes), changes)
    assert "Binary files a/bin and b/bin differ" in shown and "-\ufffd" in shown
    assert "of the host" not in shown and "+++ b/../secret\n@@ -0,0 +1 @@\n+x\n" in shown


def test_of_a_diff_without_an_end_the_beginning_is_kept_and_the_rest_counted() -> None:
    long = diff({}, {"long.txt": b"0123456789\n" * 50_000})
    assert len(long) < MOST_CHARACTERS + 100 and long.startswith("diff --git a/long.txt b/long.txt\n")
    assert re.search(r"\n\[\.\.\. 4\d\d,\d{3} characters left out \.\.\.\]\n$", long)
    assert diff({}, {"huge.txt": b"x" * (MOST_BYTES + 1)}) == "[huge.txt: not shown]\n"
    many = diff({}, {f"{number:04}": b"x\n" for number in range(2_000)})
    assert len(many) < 2 * MOST_CHARACTERS and many.count("diff --git") == 500


def test_mutations_are_small_compile_and_cover_all_kinds() -> None:
    source = (
        'def f(a, b):\n    """Ünïcode."""\n    if not a:\n        return b\n    if a < b and b in (1, 2):\n'
        "        return max(a, b) + 1, a\n    return a[1:b] - b\n"
    )
    found = mutations(source)
    kinds = {"comparison", "arithmetic", "boolean", "constant", "guard", "condition", "arguments", "returned"}
    kinds |= {"result", "slice"}
    assert {mutation.kind for mutation in found} == kinds
    for mutation in found:
        changed = mutation.apply(source)
        ast.parse(changed)
        assert changed != source
        assert abs(len(changed) - len(source)) < 70
    assert found == mutations(source)


@pytest.mark.parametrize(
    ("right", "kind", "wrong"),
    [
        ("return True", "result", {"return False"}),
        ("return a", "result", {"return None"}),
        ("return None", "result", set()),
        ("return a[i:j]", "slice", {"return a[(i) + 1:j]", "return a[i:(j) - 1]"}),
        ("return a, b", "returned", {"return b, a"}),
        ("if a < b: pass", "comparison", {"if a <= b: pass", "if a > b: pass"}),
    ],
)
def test_a_mutation_is_the_wrong_form_of_a_right_one(right: str, kind: str, wrong: set[str]) -> None:
    head = "def f(a, b, i, j):\n    "
    made = {m.apply(head + right).removeprefix(head) for m in mutations(head + right) if m.kind == kind}
    assert made == wrong


def test_a_seed_gives_the_same_candidates() -> None:
    assert candidates(shipped("versions"), 3) == candidates(shipped("versions"), 3)
    assert candidates(shipped("versions"), 3) != candidates(shipped("versions"), 4)


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


@pytest.mark.parametrize(("split", "package"), [("train", "versions"), ("test", "graphs")])
def test_shipped_rows_can_be_made_again_byte_for_byte(split: str, package: str) -> None:
    shipped = [task.data for task in SweEnv().load_tasks(split) if task.data["repo"] == f"skyrl/{package}"]

    async def again() -> list[str]:
        return [json.dumps(row) async for row in generate_tasks([package], split, 2, seed=0)]

    assert asyncio.run(again()) == [json.dumps(row) for row in shipped[:2]]
