"""Tasks of container images. A bubblewrap sandbox stands in for the container: a tree at /testbed, with its history."""

import asyncio
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym import ToolCall
from skyrl_gym.envs.swe import container
from skyrl_gym.envs.swe.instance import read_instance
from skyrl_gym.envs.swe.packages import runtime
from skyrl_gym.envs.swe.schemas import standard_row
from skyrl_gym.envs.swe.solve import gold_actions
from skyrl_gym.errors import GradeError, SetupError, TaskError, UserError
from skyrl_gym.policy import ScriptedPolicy
from skyrl_gym.rollout import RolloutLimits, Runner, Trajectory, requests_for
from skyrl_gym.sandbox import Mount, SandboxSpec, default_ledger, open_sandbox, pool
from skyrl_gym.tasks import Task

WRONG, RIGHT = "def half(x):\n    return x // 3\n", "def half(x):\n    return x // 2\n"
OLD = "from moon import half\n\n\ndef test_nothing():\n    assert half(0) == 0\n"
NEW = f"{OLD}\n\ndef test_half():\n    assert half(6) == 3\n"
GOLD = "--- a/moon.py\n+++ b/moon.py\n@@ -1,2 +1,2 @@\n def half(x):\n-    return x // 3\n+    return x // 2\n"
TESTS = (
    "--- a/tests/test_moon.py\n+++ b/tests/test_moon.py\n@@ -3,3 +3,7 @@\n \n def test_nothing():\n"
    "     assert half(0) == 0\n+\n+\n+def test_half():\n+    assert half(6) == 3\n"
)
APPLY = f"git apply - <<'END'\n{TESTS}END\n"
MARKED = f"set -uxo pipefail\ncd /testbed\n{APPLY}: '>>>>> Start Test Output'\n{{}}\n: '>>>>> End Test Output'\n"
BASE = {
    "instance_id": "half__moon-1",
    "repo": "half/moon",
    "patch": GOLD,
    "test_patch": TESTS,
    "problem_statement": "half(6) is 2.",
    "FAIL_TO_PASS": ["tests/test_moon.py::test_half"],
    "PASS_TO_PASS": ["tests/test_moon.py::test_nothing"],
    "image": "half/moon:1",
    "activate": "export PATH=/opt/tools:$PATH",
}


def moved(row: Any) -> Any:
    """R2E-Gym's tests in a folder below a mount, which can't be removed itself."""
    made = dict(standard_row(row))
    made["hidden"] = [*made["hidden"], "/image/r2e_tests"]
    made["eval_script"] = made["eval_script"].replace("ln -sfn /r2e", "ln -sfn /image/r2e")
    return made


ROWS: dict[str, Any] = {
    "no script": BASE,
    "a script": {
        **BASE,
        "eval_script": MARKED.format("python3 -m pytest -rA tests"),
        "log_parser": "parse_log_pytest_v2",
    },
    "a log": {
        **BASE,
        "eval_script": MARKED.format("env -u PYTEST_ADDOPTS python3 -m pytest -rA tests")
        + "echo '>>>>> Test Exit Code: 0'\n",
        "log_parser": "pytest",
    },
    "an injected bug": standard_row(
        {
            "instance_id": "half__moon.abcd",
            "repo": "swesmith/half__moon.abcd",
            "image_name": "right",
            "patch": GOLD.replace("-    return x // 3\n+    return x // 2", "-    return x // 2\n+    return x // 3"),
            "problem_statement": "half(6) is 2.",
            "FAIL_TO_PASS": ["tests/test_moon.py::test_half"],
            "PASS_TO_PASS": ["tests/test_moon.py::test_nothing"],
        }
    ),
    "hidden tests in the image": moved(
        {
            "repo_name": "moon",
            "docker_image": "half/moon:r2e",
            "commit_hash": "abcd",
            "parsed_commit_content": {"file_diffs": []},
            "expected_output_json": {"test_half": "PASSED", "test_nothing": "PASSED"},
            "problem_statement": "half(6) is 2.",
        }
    )
    | {"patch": GOLD},
}
SECRETS = ("x // 2", "half(6) == 3", "The repair that nobody must see")


def git(tree: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *arguments], cwd=tree, check=True, capture_output=True, timeout=30)


@pytest.fixture(scope="module")
def images() -> Iterator[Path]:
    """Two trees: `base`, whose history goes on after the commit that is checked out, and `right`."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        for name, code, tests in (("base", WRONG, OLD), ("right", RIGHT, NEW)):
            (root / name / "tests").mkdir(parents=True)
            (root / name / "moon.py").write_text(code)
            (root / name / "tests" / "test_moon.py").write_text(tests)
            (root / name / "run_tests.sh").write_text("python3 -W ignore -m pytest -rA r2e_tests\n")
            (root / name / ".gitignore").write_text("r2e_tests\nrun_tests.sh\n*.log\n")
            (root / name / "tool").write_text("#!/bin/sh\n")
            (root / name / "tool").chmod(0o755)
            git(root / name, "init", "-q", "-b", "main")
            git(root / name, "add", "-A")
            git(root / name, "commit", "-q", "-m", "Before")
        (root / "base" / "moon.py").write_text(RIGHT)
        git(root / "base", "commit", "-q", "-a", "-m", "The repair that nobody must see")
        git(root / "base", "tag", "v2")
        git(root / "base", "remote", "add", "origin", "https://example.org/moon.git")
        git(root / "base", "update-ref", "refs/remotes/origin/main", "HEAD")
        git(root / "base", "gc", "-q")
        git(root / "base", "reset", "-q", "--hard", "HEAD~1")
        (root / "image" / "r2e_tests").mkdir(parents=True)
        (root / "image" / "r2e_tests" / "test_1.py").write_text(NEW)
        yield root


@pytest.fixture(autouse=True)
def _bubblewrap_for_docker(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = runtime(read_instance(Task.from_row({**BASE, "image": None})))

    async def open_instead(spec: SandboxSpec, backend: str, *, ledger: Any = None, snapshot: Any = None) -> Any:
        assert backend == "docker" and spec.image
        tree = images / ("right" if spec.image == "right" else "base")
        shown = {"/testbed": tree, "/image": images / "image"}
        own = (Mount(str(source), target, "private") for target, source in shown.items())
        env = {**spec.env, "PYTHONPATH": ":".join([*needed.paths, "/testbed"])}
        own_spec = replace(spec, image=None, mounts=(*own, *needed.mounts), env=env)
        return await open_sandbox(own_spec, "bubblewrap", ledger=ledger, snapshot=snapshot)

    for user in (container, pool):
        monkeypatch.setattr(user, "open_sandbox", open_instead)


@pytest.mark.parametrize("name", ROWS)
def test_gold_is_1_and_doing_nothing_0(name: str, play: Any) -> None:
    task = Task.from_row(ROWS[name])
    reward, metrics = play(task)
    assert (reward, metrics["tests_ran"], metrics["files_changed"]) == (0.0, 1.0, 0.0)
    reward, metrics = play(task, *gold_actions(task)[:-1])
    assert (reward, metrics["files_changed"]) == (1.0, 1.0)


def bash(env: Any, command: str) -> str:
    return str(env.step(ToolCall("bash", {"command": command}))[0][-1].content)


@pytest.mark.parametrize("name", [name for name in ROWS if name != "an injected bug"])
def test_neither_the_repair_nor_hidden_tests_nor_later_history_are_in_the_agents_container(name: str, env: Any) -> None:
    """mini-swe-agent#787, SWE-bench#465, and the hidden tests that a published path links into the repository."""
    env.reset(options={"task": Task.from_row(ROWS[name])})
    for secret in SECRETS:
        found = bash(env, f"grep -rFl -- '{secret}' /testbed /image /tmp /var/tmp /root /home 2>/dev/null | head -3")
        assert found in ("bash gave no output.", "/image/r2e_tests/test_1.py" * (name != "hidden tests in the image"))
    assert bash(env, "git log --all --format=%s") == "Initial commit"
    assert bash(env, "git remote; git tag; git stash list; git reflog; git fsck --lost-found") == "bash gave no output."
    assert bash(env, "ls .git/packed-refs .git/ORIG_HEAD .git/FETCH_HEAD .git/logs .git/objects/pack/* 2>/dev/null")
    contents = bash(env, "git cat-file --batch --batch-all-objects")
    assert not any(secret in contents for secret in SECRETS)
    assert bash(env, "git status --short") == "bash gave no output."


def test_the_tests_that_notice_an_injected_bug_are_out_of_the_agents_sight(env: Any) -> None:
    env.reset(options={"task": Task.from_row(ROWS["an injected bug"])})
    assert bash(env, "cat moon.py").endswith("x // 3")
    assert bash(env, "ls tests; git ls-files tests") == "bash gave no output."


def test_the_tools_of_the_task_are_found_by_every_process(env: Any) -> None:
    env.reset(options={"task": Task.from_row(BASE)})
    assert bash(env, "echo $PATH").startswith("/opt/tools:")
    bash(env, "exit")
    assert bash(env, "echo $PATH; bash -c 'echo $PATH'").count("/opt/tools:") == 2


def test_the_editor_works_where_the_image_has_its_repository(env: Any) -> None:
    env.reset(options={"task": Task.from_row(BASE)})
    edit = ToolCall("edit", {"command": "str_replace", "path": "moon.py", "old_str": "// 3", "new_str": "//"})
    assert "does not parse" in str(env.step(edit)[0][-1].content)


CHEATS = {
    "print and leave": "import os; os.write(1, b'PASSED tests/test_moon.py::test_half\\n'); os._exit(0)",
    "print a summary and leave": (
        "import os; os.write(1, b'=== short test summary info ===\\nPASSED tests/test_moon.py::test_half\\n"
        "PASSED tests/test_moon.py::test_nothing\\n'); os._exit(0)"
    ),
    "rewrite the tests": (
        "import glob\nfor f in glob.glob('/testbed/*tests/*.py'): open(f, 'w').write('def test_half(): pass\\n"
        "def test_nothing(): pass\\n')"
    ),
    "another run of tests": (
        "import sys; p = sys.modules.get('_pytest.python')\nif p: p.Function.runtest = lambda self: None"
    ),
}


@pytest.mark.parametrize("row", ["no script", "a script", "hidden tests in the image"])
@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats_score_0(row: str, cheat: str, play: Any) -> None:
    """verifiers#1480: what the agent prints is believed to be the exit code."""
    command = f"cat >> moon.py <<'END'\n{CHEATS[cheat]}\nEND"
    assert play(Task.from_row(ROWS[row]), ToolCall("bash", {"command": command}))[0] == 0.0


def test_tests_that_are_rewritten_before_they_are_read_are_noticed(play: Any) -> None:
    """The second file of tests is read after the code under test was first imported."""
    code = "+def test_z():\n+    from moon import half; assert half(6) == 3\n"
    patch = f"--- /dev/null\n+++ b/tests/test_z.py\n@@ -0,0 +1,2 @@\n{code}"
    script = ROWS["a script"]["eval_script"].replace(APPLY, f"git apply - <<'END'\n{patch}END\n")
    row = {**ROWS["a script"], "eval_script": script, "FAIL_TO_PASS": ["tests/test_z.py::test_z"]}
    rewrite = "open('/testbed/tests/test_z.py', 'w').write('def test_z(): pass')"
    command = ToolCall("bash", {"command": f'echo "{rewrite}" >> moon.py'})
    reward, metrics = play(Task.from_row(row), command)
    assert (reward, metrics["tests_ran"]) == (0.0, 0.0)


@pytest.mark.parametrize("row", ["no script", "a script", "a log"])
def test_changed_tests_and_configuration_are_not_taken_over(row: str, play: Any) -> None:
    command = (
        "printf 'def test_half(): pass\\n' > tests/test_moon.py; printf '[pytest]\\naddopts=--co\\n' > pytest.ini;"
        "printf 'import os\\nos._exit(0)\\n' | tee conftest.py sitecustomize.py setup.py > tests/conftest.py"
    )
    reward, metrics = play(Task.from_row(ROWS[row]), ToolCall("bash", {"command": command}))
    assert (reward, metrics["files_changed"], metrics["tests_ran"]) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    "beside",
    [
        "rm -rf .git; mkfifo pipe; ln -s / root; mkdir a; touch a/$(printf %0200d 1); chmod 0 tool",
        "git add -A; git commit -qm done; git checkout -q -b other; rm .gitignore; rm -rf tests",
        "rm -f run_tests.sh; mkdir nested; cd nested; git init -q; touch x; echo > ../x.log; rm /tmp/.activation",
    ],
)
@pytest.mark.parametrize("row", ["a script", "hidden tests in the image"])
def test_what_is_left_beside_a_repair_does_not_matter(row: str, beside: str, play: Any) -> None:
    task = Task.from_row(ROWS[row])
    assert play(task, *gold_actions(task)[:-1], ToolCall("bash", {"command": beside}))[0] == 1.0


def test_new_files_count_and_modes_of_old_ones_stay(play: Any) -> None:
    script = "test -x tool && python3 -m pytest -rA tests"
    row = {**ROWS["a script"], "eval_script": MARKED.format(script)}
    code = "printf 'from new import half\n' > moon.py; printf 'half = lambda x: x // 2\n' > new.py"
    reward, metrics = play(Task.from_row(row), ToolCall("bash", {"command": f"echo echo >> tool; {code}"}))
    assert (reward, metrics["files_changed"]) == (1.0, 3.0)


def test_a_log_that_contradicts_its_exit_status_is_void(play: Any) -> None:
    row = {**ROWS["a log"], "eval_script": ROWS["a log"]["eval_script"].replace("Exit Code: 0", "Exit Code: 1")}
    task = Task.from_row(row)
    assert play(task)[1]["tests_ran"] == 1.0
    reward, metrics = play(task, *gold_actions(task)[:-1])
    assert (reward, metrics["tests_ran"]) == (0.0, 0.0)


def test_a_log_of_failures_alone_needs_a_sign_that_the_suite_ran(play: Any) -> None:
    def outcome(says: str) -> float:
        script = MARKED.format(f"echo '{says}'")
        row = {**ROWS["a log"], "eval_script": script, "eval_type": "fail_only"}
        return float(play(Task.from_row(row))[0])

    assert (outcome("2 passing"), outcome("nothing"), outcome("0 passing")) == (1.0, 0.0, 0.0)


def test_a_script_that_does_not_get_to_the_tests_is_no_wrong_answer(play: Any) -> None:
    row = {**ROWS["a log"], "eval_script": f"exit 3\n{ROWS['a log']['eval_script']}"}
    with pytest.raises(GradeError, match="could not be begun"):
        play(Task.from_row(row))


def test_tests_that_hang_are_stopped(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "TESTS_S", 3.0)
    for name in ("no script", "a script", "a log"):
        hang = ToolCall("bash", {"command": "printf 'while True: pass\\n' > moon.py"})
        reward, metrics = play(Task.from_row(ROWS[name]), hang)
        assert (reward, metrics["tests_ran"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"FAIL_TO_PASS": ["test_half (moon.Test)"]}, TaskError, "is no test of pytest's, and the row has no eval_scr"),
        ({"eval_script": "x", "log_parser": "parse_log_nothing"}, UserError, "parse_log_nothing|swebench"),
    ],
)
def test_what_could_not_be_graded_is_refused_before_an_agent_begins(
    change: Any, error: type[Exception], says: str, env: Any
) -> None:
    with pytest.raises(error, match=says):
        env.reset(options={"task": Task.from_row({**BASE, **change})})


def test_a_row_that_does_not_fit_its_image_is_refused(play: Any) -> None:
    with pytest.raises(TaskError, match="a patch does not apply to /testbed of half/moon:1"):
        play(Task.from_row({**BASE, "test_patch": TESTS.replace("test_nothing", "other")}))
    with pytest.raises(SetupError, match="could not be cleaned"):
        play(Task.from_row({**BASE, "repository": "/nowhere"}))


@pytest.mark.parametrize("live", [1, 3])
def test_the_episodes_of_a_group_share_what_was_prepared_for_the_first(preparations: list[int], live: int) -> None:
    task = Task.from_row(ROWS["no script"])
    policy = ScriptedPolicy(lambda prompt: gold_actions(task)[len(prompt.messages) // 2])

    async def main() -> list[Trajectory]:
        runner = Runner(policy, limits=RolloutLimits(live=live))
        return [found async for found in runner.run(requests_for("skyrl/swe-v0", [task], samples=3))]

    before = default_ledger().live
    played = asyncio.run(main())
    assert [found.reward for found in played] == [1.0, 1.0, 1.0]
    assert preparations == [1]
    assert all("+    return x // 2" in found.artifacts["patch"] for found in played)
    assert default_ledger().live == before
