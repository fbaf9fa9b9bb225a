"""Rows of every published schema become tasks of ours; the rows here are written for these tests."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from skyrl_gym import Task
from skyrl_gym.envs.swe import sources
from skyrl_gym.envs.swe.env import SweEnv
from skyrl_gym.envs.swe.instance import Instance, read_instance
from skyrl_gym.envs.swe.schemas import SCHEMAS, standard_row
from skyrl_gym.envs.swe.sources import SOURCES, load_source, read_tasks
from skyrl_gym.errors import ConfigError, TaskError

PATCH = "--- a/moon/phase.py\n+++ b/moon/phase.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
TESTS = "--- a/tests/test_phase.py\n+++ b/tests/test_phase.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\n"
FAIL, PASS = ["tests/test_phase.py::test_new"], ["tests/test_phase.py::test_old"]

SWE_BENCH = {
    "instance_id": "Half__moon-12",
    "repo": "Half/moon",
    "base_commit": "0" * 40,
    "patch": PATCH,
    "test_patch": TESTS,
    "problem_statement": "The phase is wrong.",
    "hints_text": "",
    "created_at": "2024-01-01T00:00:00Z",
    "version": "1.0",
    "FAIL_TO_PASS": json.dumps(FAIL),
    "PASS_TO_PASS": json.dumps(PASS),
    "environment_setup_commit": "1" * 40,
}
SWE_BENCH_5 = {
    **SWE_BENCH,
    "image": "swebench/sweb.eval.x86_64.half_1776_moon-12:latest",
    "eval_script": "cd /testbed\npytest -rA tests/test_phase.py\n",
    "log_parser": "parse_log_pytest_v2",
    "eval_type": "pass_and_fail",
}
SWE_GYM = {**SWE_BENCH, "FAIL_TO_PASS": FAIL, "PASS_TO_PASS": PASS}
SWE_REBENCH = {
    **SWE_GYM,
    "install_config": {"test_cmd": "pytest -rA", "log_parser": "parse_log_pytest", "python": "3.9", "install": []},
    "meta": {"num_modified_files": 1},
}
SWE_SMITH = {
    "instance_id": "half__moon.abcd1234.func_pm_op_swap__1x2y3z",
    "repo": "swesmith/half__moon.abcd1234",
    "image_name": "swebench/swesmith.x86_64.half_1776_moon.abcd1234",
    "patch": PATCH,
    "FAIL_TO_PASS": FAIL,
    "PASS_TO_PASS": PASS,
    "problem_statement": "",
}
R2E_GYM = {
    "repo_name": "moon",
    "docker_image": "namanjain12/moon_final:abcd",
    "commit_hash": "abcd",
    "parsed_commit_content": json.dumps(
        {
            "file_diffs": [
                {
                    "header": {"file": {"path": "moon/phase.py"}},
                    "hunks": [
                        {
                            "descriptor": {"old_range": {"start": 1, "length": None}, "new_range": {"start": 1}},
                            "line_group": {
                                "all_lines": [
                                    {"content": "x = 1", "type": "deleted"},
                                    {"content": "x = 2", "type": "added"},
                                    {"content": "y = 1", "type": "context"},
                                    {"content": "No newline at end of file", "type": "note"},
                                ]
                            },
                        }
                    ],
                },
                {"header": {"file": {"path": "tests/test_phase.py"}}, "hunks": [{}]},
                {"header": {"file": {"path": "moon/picture.png"}}, "hunks": []},
            ]
        }
    ),
    "execution_result_content": "{}",
    "expected_output_json": json.dumps({"test_new - x": "PASSED", "Old.test_old": "FAILED", "": "ERROR"}),
    "modified_files": ["moon/phase.py"],
    "relevant_files": ["moon/phase.py"],
    "prompt": "Repair the phase.",
    "problem_statement": "The phase is wrong.",
}
NEMOTRON = {
    "responses_create_params": {"input": []},
    "metadata": {"instance_dict": json.dumps(SWE_GYM), "dataset_name": "SWE-Gym/SWE-Gym", "split": "train"},
}
MULTI_SWE = {
    "org": "Half",
    "repo": "moon",
    "number": 12,
    "state": "closed",
    "title": "Fix the phase",
    "body": "It was wrong.",
    "base": {"label": "half:main", "ref": "main", "sha": "0" * 40},
    "resolved_issues": [{"number": 11, "title": "The phase is wrong.", "body": None}],
    "fix_patch": PATCH,
    "test_patch": TESTS,
    "fixed_tests": {},
    "f2p_tests": {"phase::new": {"run": "PASS", "test": "FAIL", "fix": "PASS"}},
    "s2p_tests": {},
    "n2p_tests": {"phase::newer": {"run": "NONE", "test": "NONE", "fix": "PASS"}},
    "p2p_tests": {"phase::old": {"run": "PASS", "test": "PASS", "fix": "PASS"}},
}
ROWS: dict[str, Any] = {
    "swe-bench": SWE_BENCH,
    "swe-gym": SWE_GYM,
    "swe-rebench": SWE_REBENCH,
    "swe-smith": SWE_SMITH,
    "r2e-gym": R2E_GYM,
    "nemotron": NEMOTRON,
    "multi-swe": MULTI_SWE,
}
IMAGES = {
    "swe-bench": "swebench/sweb.eval.x86_64.half_1776_moon-12:latest",
    "swe-gym": "xingyaoww/sweb.eval.x86_64.half_s_moon-12:latest",
    "swe-rebench": "swerebench/sweb.eval.x86_64.half_1776_moon-12:latest",
    "swe-smith": "swebench/swesmith.x86_64.half_1776_moon.abcd1234",
    "r2e-gym": "namanjain12/moon_final:abcd",
    "nemotron": "xingyaoww/sweb.eval.x86_64.half_s_moon-12:latest",
    "multi-swe": "mswebench/half_m_moon:pr-12",
}


def instance(row: Any, schema: str | None = None) -> Instance:
    return read_instance(Task.from_row(standard_row(row, schema)))


@pytest.fixture(autouse=True)
def _on_x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


def test_every_schema_has_a_row_here() -> None:
    assert set(ROWS) == set(SCHEMAS) - {"standard"}
    assert {source.schema for source in SOURCES.values()} == set(ROWS)


@pytest.mark.parametrize("schema", ROWS)
def test_a_row_gives_an_instance_with_the_published_image(schema: str) -> None:
    found = instance(ROWS[schema], schema)
    assert found.image is not None
    assert found.image.name == IMAGES[schema]
    assert found.problem_statement
    assert "moon/phase.py" in found.patch and "x = 2" in found.patch
    assert found.fail_to_pass or found.expected


@pytest.mark.parametrize("schema", [name for name in ROWS if name not in ("swe-bench", "swe-gym")])
def test_a_row_says_by_its_fields_which_schema_it_has(schema: str) -> None:
    assert standard_row(ROWS[schema]) == standard_row(ROWS[schema], schema)


@pytest.mark.parametrize("schema", ROWS)
def test_a_standard_row_stays_as_it_is(schema: str) -> None:
    made = standard_row(ROWS[schema], schema)
    assert standard_row(made) == standard_row(made, schema) == made
    json.dumps(made)


def test_rows_of_swe_bench_that_bring_their_own_script_keep_it() -> None:
    found = instance(SWE_BENCH_5, "swe-bench").image
    assert found is not None
    assert (found.eval_script, found.log_parser) == (SWE_BENCH_5["eval_script"], "parse_log_pytest_v2")


def test_lists_of_tests_are_read_in_both_forms() -> None:
    one, other = instance(SWE_BENCH, "swe-bench"), instance(SWE_GYM, "swe-gym")
    assert one.fail_to_pass == other.fail_to_pass == tuple(FAIL)
    assert one.pass_to_pass == other.pass_to_pass == tuple(PASS)


def test_arm_has_images_of_swe_bench_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert "sweb.eval.arm64.half" in standard_row(SWE_BENCH, "swe-bench")["image"]


def test_swe_smith_gives_the_bug_and_hides_the_tests_that_notice_it() -> None:
    found = instance(SWE_SMITH)
    assert found.injected and found.patch == PATCH
    assert found.image is not None and found.image.hidden == ("/testbed/tests/test_phase.py",)
    assert FAIL[0] in found.problem_statement


def test_r2e_gym_gives_expected_outcomes_and_a_patch_of_code_alone() -> None:
    found = instance(R2E_GYM)
    assert found.id == "moon__abcd"
    assert found.expected == {"test_new": "passed", "Old.test_old": "failed"}
    assert found.patch == "--- a/moon/phase.py\n+++ b/moon/phase.py\n@@ -1,2 +1,2 @@\n-x = 1\n+x = 2\n y = 1\n"
    assert found.image is not None and "/r2e_tests" in found.image.hidden


def test_multi_swe_bench_joins_all_tests_that_come_to_pass() -> None:
    found = instance(MULTI_SWE)
    assert found.id == "Half__moon-12"
    assert (found.fail_to_pass, found.pass_to_pass) == (("phase::new", "phase::newer"), ("phase::old",))
    assert found.problem_statement == "The phase is wrong."
    assert found.image is not None and found.image.repository == "/home/moon"
    assert instance({**MULTI_SWE, "resolved_issues": []}).problem_statement == "Fix the phase\n\nIt was wrong."


def test_another_command_of_swe_rebench_becomes_a_script_with_the_test_patch() -> None:
    row = {**SWE_REBENCH, "install_config": json.dumps({"test_cmd": "go test", "log_parser": "parse_log_gotest"})}
    found = instance(row).image
    assert found is not None
    assert TESTS in found.eval_script and "go test tests/test_phase.py" in found.eval_script
    assert found.log_parser == "parse_log_gotest"


@pytest.mark.parametrize(
    ("row", "schema", "says"),
    [
        ({}, "swe-bench", "task . is no row of swe-bench: field 'instance_id' is missing"),
        ({"docker_image": "a", "expected_output_json": "{"}, None, "task a is no row of r2e-gym"),
        ({"org": "a", "number": "x", "fix_patch": "", "repo": "b"}, None, "is no row of multi-swe: invalid literal"),
        ({**SWE_SMITH, "FAIL_TO_PASS": None}, None, "half__moon.* is no row of swe-smith"),
        ({**NEMOTRON, "metadata": "[]"}, None, "an object was expected"),
    ],
)
def test_a_row_that_does_not_fit_is_named(row: Any, schema: str | None, says: str) -> None:
    with pytest.raises(TaskError, match=says):
        standard_row(row, schema)


def test_an_unknown_schema_or_source_or_split_is_named() -> None:
    with pytest.raises(ConfigError, match="unknown schema 'x'; known: multi-swe, nemotron"):
        standard_row({}, "x")
    with pytest.raises(ConfigError, match=r"unknown source of tasks 'x'; known: .*shipped.*swe-pypi"):
        SweEnv(source="x")
    with pytest.raises(ConfigError, match="has the splits test; got 'train'"):
        SweEnv(source="swe-bench-verified")
    with pytest.raises(ConfigError, match="has the splits test; got 'train'"):
        load_source("multi-swe", "train")


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, list[Any]], None]:
    """Puts a local data set in the place of one on the hub."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")

    def put(name: str, rows: list[Any]) -> None:
        source = SOURCES[name]
        folder = tmp_path / name
        folder.mkdir()
        files = []
        for split in sorted(set(source.splits.values())):
            (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            files.append({"split": split, "path": f"{split}.jsonl"})
        configs = yaml.safe_dump({"configs": [{"config_name": "default", "data_files": files}]})
        (folder / "README.md").write_text(f"---\n{configs}---\n")
        monkeypatch.setattr(sources, "SOURCES", {**SOURCES, name: replace(source, hub=str(folder))})

    return put


@pytest.mark.parametrize("name", ["swe-bench-lite", "r2e-gym", "multi-swe"])
def test_a_set_is_read_through_the_library_of_data_sets(name: str, published: Any) -> None:
    schema = SOURCES[name].schema
    published(name, [ROWS[schema]] * 2)
    tasks = SweEnv(source=name, split=next(iter(SOURCES[name].splits))).tasks
    assert read_instance(tasks[0]) == instance(ROWS[schema], schema)


def test_a_set_with_one_split_gives_two_that_share_no_task(published: Any) -> None:
    published("swe-gym", [{**SWE_GYM, "instance_id": f"half__moon-{i}"} for i in range(25)])
    train, test = ({task.id for task in load_source("swe-gym", split)} for split in ("train", "test"))
    assert (len(train), len(test)) == (22, 3)
    assert not train & test


def test_a_file_in_a_published_schema_stands_in_place_of_the_suites_tasks(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps(R2E_GYM) + "\n")
    assert [task.id for task in SweEnv(tasks=str(file)).tasks] == ["moon__abcd"]
    assert [task.id for task in read_tasks(str(file))] == ["moon__abcd"]


def test_tasks_of_the_package_index_are_in_a_file_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SKYRL_SWE_PYPI", raising=False)
    with pytest.raises(TaskError, match=r"name one in SKYRL_SWE_PYPI, or make one with: skyrl tasks make-swe"):
        load_source("swe-pypi", "test")
    (tmp_path / "tasks.jsonl").write_text(json.dumps({**SWE_GYM, "image": "x"}) + "\n")
    monkeypatch.setenv("SKYRL_SWE_PYPI", str(tmp_path / "tasks.jsonl"))
    assert len(load_source("swe-pypi", "test")) == 1
