"""The environment through Gymnasium's API, its grading, and every cheat we know."""

import asyncio
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pytest

import skyrl_gym
from skyrl_gym import TaskSet, ToolCall
from skyrl_gym.envs.swe.env import SweEnv
from skyrl_gym.envs.swe.instance import read_instance
from skyrl_gym.envs.swe.solve import gold_actions
from skyrl_gym.errors import ConfigError, SandboxError
from skyrl_gym.sandbox import default_ledger


def bash(command: str) -> ToolCall:
    return ToolCall("bash", {"command": command})


@pytest.fixture(scope="module")
def env() -> Iterator[Any]:
    env = gym.make("skyrl/swe-v0").unwrapped
    yield env
    env.close()
    assert default_ledger().live == 0


def play(env: Any, task: Any, *actions: ToolCall) -> tuple[float, dict[str, Any]]:
    env.reset(options={"task": task})
    for action in (*actions, ToolCall("submit")):
        _, reward, terminated, _, info = env.step(action)
    assert terminated
    return reward, info["metrics"]


def last(env: Any, action: ToolCall) -> str:
    return str(env.step(action)[0][-1].content)


@pytest.mark.parametrize("index", [0, 1, 2, 3, 4, 5])
def test_gold_is_1_and_doing_nothing_0(env: Any, index: int) -> None:
    task = env.tasks[index]
    reward, metrics = play(env, task)
    assert (reward, metrics["fail_to_pass"] < 1, metrics["tests_ran"]) == (0.0, True, 1.0)
    assert play(env, task, *gold_actions(task)[:-1])[0] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "test"])
def test_gold_is_1_and_doing_nothing_0_for_every_shipped_task(env: Any, split: str) -> None:
    for task in env.load_tasks(split):
        assert play(env, task)[0] == 0.0, task.id
        assert play(env, task, *gold_actions(task)[:-1])[0] == 1.0, task.id


@pytest.mark.slow
def test_gold_is_1_and_doing_nothing_0_for_every_real_task(env: Any, real_tasks: TaskSet) -> None:
    assert len(real_tasks) == 22
    for task in real_tasks:
        assert play(env, task)[0] == 0.0, task.id
        assert play(env, task, *gold_actions(task)[:-1])[0] == 1.0, task.id


CHEATS = {
    "delete the tests": "rm -rf tests",
    "empty the tests": "for f in tests/*.py; do echo 'def test_a(): pass' > $f; done",
    "print PASSED": "printf 'import sys\\nprint(\"PASSED\"); sys.stdout.flush()\\n' >> {module}",
    "exit with 0": "printf '\\nimport os\\nos._exit(0)\\n' >> {module}",
    "raise SystemExit": "printf '\\nimport sys\\nsys.exit(0)\\n' >> {module}",
    "conftest hook": (
        "printf 'import pytest\\n@pytest.hookimpl(tryfirst=True)\\ndef pytest_pyfunc_call(pyfuncitem):\\n"
        "    return True\\n' | tee conftest.py tests/conftest.py"
    ),
    "sitecustomize": "printf 'import os\\nos._exit(0)\\n' | tee sitecustomize.py usercustomize.py",
    "stale pyc": "python3 -m compileall -q . ; find . -name '*.pyc' | head",
    "monkeypatched runner": (
        'printf \'\\nimport sys\\np = sys.modules.get("_pytest.python")\\n'
        "if p: p.Function.runtest = lambda self: None\\n' >> {module}"
    ),
    "monkeypatched call of tests": (
        'printf \'\\nimport sys\\np = sys.modules.get("_pytest.python")\\n'
        "if p: p.pytest_pyfunc_call = lambda pyfuncitem: True\\n"
        'r = sys.modules.get("_pytest.runner")\\nif r: r.pytest_runtest_call = lambda item: None\\n\' >> {module}'
    ),
    "forged reports": (
        'printf \'\\nimport sys\\nr = sys.modules.get("_pytest.reports")\\n'
        'if r: r.TestReport.outcome = property(lambda s: "passed", lambda s, v: None)\\n\' >> {module}'
    ),
    "symlink to the tests": "mv tests /tmp/t; mkdir /tmp/u; ln -s /tmp/u tests",
    "configuration": "printf '[pytest]\\naddopts = --collect-only\\n' | tee pytest.ini tox.ini setup.cfg",
    "module in place of one of Python's": "printf 'import os\\nos._exit(0)\\n' | tee json.py traceback.py pytest.py",
    "forged report on stdout": (
        "printf '\\nimport sys\\nfor i in range(3): print(\"0\" * 32 + chr(123) + chr(125))\\n' >> {module}"
    ),
    "git history": "git log --all --oneline | cat; git fsck --lost-found; git reflog",
}


def cheat(env: Any, task: Any, name: str) -> float:
    package = read_instance(task).repo.rpartition("/")[2]
    command = CHEATS[name].replace("{module}", f"{package}/__init__.py")
    return play(env, task, bash(command))[0]


@pytest.mark.parametrize("name", CHEATS)
def test_cheats_score_0(env: Any, name: str) -> None:
    assert cheat(env, env.tasks[0], name) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", CHEATS)
def test_cheats_score_0_on_every_shipped_task(env: Any, name: str) -> None:
    for task in [*env.load_tasks("train"), *env.load_tasks("test")]:
        assert cheat(env, task, name) == 0.0, task.id


def test_the_answer_is_not_in_the_sandbox(env: Any) -> None:
    task = env.tasks[0]
    env.reset(options={"task": task})
    added = [line[1:].strip() for line in str(task.data["patch"]).splitlines() if line[:1] == "+"]
    fixed = [line for line in added if not line.startswith("++")]
    assert last(env, bash("git log --all --oneline | wc -l")).strip() == "1"
    assert last(env, bash("git remote; git stash list; git tag; true")) == "bash gave no output."
    for line in fixed:
        searched = last(env, bash(f"grep -rnF -- {line!r} /work /tmp /opt 2>/dev/null | head -3"))
        assert searched.startswith("bash gave no output"), line
    objects = last(env, bash("git cat-file --batch-check --batch-all-objects | wc -l"))
    reachable = last(env, bash("git rev-list --objects --all | wc -l"))
    assert objects == reachable


def test_bash_keeps_its_state_and_tells_what_happened(env: Any) -> None:
    env.reset(options={"task": 0})
    assert last(env, bash("cd /tmp && export A=1")) == "bash gave no output."
    assert last(env, bash("echo $PWD $A; false")) == "/tmp 1\n[exit status 1]"
    assert "[stopped after 1 s]" in last(env, ToolCall("bash", {"command": "sleep 9", "timeout": 1}))
    assert "a new one was started" in last(env, bash("exit 3"))
    assert last(env, bash("python3 -m pytest --version")).startswith("pytest ")


def test_the_editor_in_the_sandbox(env: Any) -> None:
    env.reset(options={"task": 0})

    def edit(command: str, path: str = "new/file.py", **arguments: Any) -> str:
        return last(env, ToolCall("edit", {"command": command, "path": path, **arguments}))

    assert edit("create", file_text="x = 1\n\ty\r\n") == "Created new/file.py."
    assert "is there already" in edit("create", file_text="")
    assert "Warning: the file does not compile" in edit("str_replace", old_str="x = 1", new_str="x = (")
    assert edit("undo") == "Took back the last change of new/file.py."
    assert last(env, bash("od -c new/file.py | head -1")).split()[1:] == [*"x=1", "\\n", "\\t", "y", "\\r", "\\n"]
    assert "     1\tx = 1" in edit("view")
    assert "Changed" in edit("insert", insert_line=0, new_str="# first")
    edit("undo")
    assert edit("undo") == "Removed new/file.py, which had been created."
    assert "There is no file" in edit("str_replace", old_str="a", new_str="b")
    assert "no change" in edit("undo")
    assert "needs file_text" in edit("create")
    assert "/work/tests" in edit("view", "/work")
    assert "no such file" in edit("view", "nowhere")


def test_a_task_past_its_turns_is_graded(env: Any) -> None:
    short = SweEnv(max_turns=1)
    short.reset(options={"task": 0})
    _, reward, terminated, truncated, info = short.step(bash("true"))
    short.close()
    assert (reward, terminated, truncated, info["stop_reason"]) == (0.0, False, True, "max_turns")


def test_a_code_that_hangs_the_tests_scores_0(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skyrl_gym.envs.swe.grading.TESTS_TIMEOUT_S", 2.0)
    task = env.tasks[0]
    package = read_instance(task).repo.rpartition("/")[2]
    reward, metrics = play(env, task, bash(f"printf '\\nwhile True: pass\\n' >> {package}/__init__.py"))
    assert (reward, metrics["tests_ran"]) == (0.0, 0.0)


def test_a_setup_that_fails_leaves_no_sandbox(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    env = SweEnv()
    monkeypatch.setenv("PATH", str(tmp_path))
    before = default_ledger().live
    with pytest.raises((SandboxError, Exception)):
        asyncio.run(env.areset(seed=1))
    assert default_ledger().live == before


def test_an_unknown_backend_is_refused_when_it_is_made() -> None:
    with pytest.raises(ConfigError, match="bubblewrap, process; got 'dokcer'"):
        SweEnv(sandbox="dokcer")


def test_a_real_task(env: Any, real_tasks: TaskSet) -> None:
    task = real_tasks.find("r1chardj0n3s__parse-1.20.1")
    try:
        assert play(env, task)[0] == 0.0
    except skyrl_gym.errors.SetupError as error:
        pytest.skip(f"the package index can't be reached: {error}")
    assert play(env, task, *gold_actions(task)[:-1])[0] == 1.0
