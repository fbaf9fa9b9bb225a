"""The environment through Gymnasium's API, and its grading."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym import TaskSet, ToolCall
from skyrl_gym.envs.swe.env import SweEnv
from skyrl_gym.envs.swe.instance import read_instance
from skyrl_gym.envs.swe.solve import gold_actions
from skyrl_gym.errors import GradeError, SandboxError, SetupError
from skyrl_gym.sandbox import default_ledger


def bash(command: str) -> ToolCall:
    return ToolCall("bash", {"command": command})


def last(env: Any, action: ToolCall) -> str:
    return str(env.step(action)[0][-1].content)


@pytest.mark.parametrize("index", [0, 1, 2, 3, 4, 5])
def test_gold_is_1_and_doing_nothing_0(env: Any, play: Any, index: int) -> None:
    """R2E-Gym#27: reward 1 without a change; tunix#2073: reward always 0."""
    task = env.tasks[index]
    reward, metrics = play(task)
    assert (reward, metrics["fail_to_pass"] < 1, metrics["pass_to_pass"], metrics["tests_ran"]) == (0.0, True, 1.0, 1.0)
    assert play(task, *gold_actions(task)[:-1])[0] == 1.0


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("split", ["train", "test"])
def test_gold_is_1_and_doing_nothing_0_for_every_shipped_task(env: Any, play: Any, split: str) -> None:
    for task in env.load_tasks(split):
        assert play(task)[0] == 0.0, task.id
        assert play(task, *gold_actions(task)[:-1])[0] == 1.0, task.id


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_gold_is_1_and_doing_nothing_0_for_every_real_task(play: Any, real_tasks: TaskSet) -> None:
    assert len(real_tasks) == 22
    for task in real_tasks:
        assert play(task)[0] == 0.0, task.id
        assert play(task, *gold_actions(task)[:-1])[0] == 1.0, task.id


def test_bash_keeps_its_state_and_tells_what_happened(env: Any) -> None:
    env.reset(options={"task": 0})
    assert last(env, bash("cd /tmp && export A=1")) == "bash gave no output."
    assert last(env, bash("echo $PWD $A; false")) == "/tmp 1\n[exit status 1]"
    assert "[stopped after 1 s]" in last(env, ToolCall("bash", {"command": "sleep 9", "timeout": 1}))
    assert last(env, bash("exit 3")).startswith("[the shell exited with status 3]\n[a new shell was started")
    assert last(env, bash("python3 -m pytest --version")).startswith("pytest ")


def test_a_fork_has_a_repository_of_its_own(env: Any) -> None:
    task = env.tasks[0]
    env.reset(options={"task": task})
    last(env, ToolCall("edit", {"command": "create", "path": "note", "file_text": "before\n"}))
    twin = env.fork()
    assert last(env, bash("echo here > note; rm setup.py 2>/dev/null; cat note")) == "here"
    assert last(twin, bash("cat note")) == "before"
    for action in gold_actions(task):
        _, reward, terminated, _, _ = twin.step(action)
    assert (terminated, reward) == (True, 1.0)
    twin.close()
    assert env.step(ToolCall("submit"))[1] == 0.0


def test_the_editor_in_the_sandbox(env: Any) -> None:
    """The published editor shows .py files only, and its undo of create leaves an empty file."""
    env.reset(options={"task": 0})

    def edit(command: str, path: str = "new/file.py", **arguments: Any) -> str:
        return last(env, ToolCall("edit", {"command": command, "path": path, **arguments}))

    assert edit("create", file_text="x = 1\n#\ty\r\n") == "Created new/file.py."
    assert "is there already" in edit("create", file_text="")
    assert "Warning: the file does not parse" in edit("str_replace", old_str="x = 1", new_str="x = (")
    assert edit("undo") == "Took back the last change of new/file.py."
    assert last(env, bash("od -c new/file.py | head -1")).split()[1:] == [
        "x",
        "=",
        "1",
        "\\n",
        "#",
        "\\t",
        "y",
        "\\r",
        "\\n",
    ]
    assert "     1\tx = 1" in edit("view")
    assert "Changed" in edit("insert", insert_line=0, new_str="# first")
    edit("undo")
    assert edit("undo") == "Removed new/file.py again."
    edit("create", path="/work/new/../x.py", file_text="1")
    env.step(bash("echo 2 > x.py"))
    assert "changed by something else" in edit("undo", path="x.py")
    assert "There is no file" in edit("str_replace", old_str="a", new_str="b")
    assert "no change" in edit("undo")
    assert "needs file_text" in edit("create")
    assert "/work/tests/\n" in edit("view", "/work")
    env.step(bash("mkdir -p .hidden/.x; touch .hidden/y .hidden/.z; head -c 20M /dev/zero > big; mkfifo pipe"))
    assert edit("view", ".hidden") == "/work/.hidden/y"
    assert "larger than" in edit("view", "big")
    env.step(bash("printf 'a\\0b' > bin"))
    assert "binary" in edit("str_replace", "bin", old_str="a", new_str="b")
    assert last(env, bash("od -c bin | head -1")).split()[1:] == ["a", "\\0", "b"]
    assert "not a regular file" in edit("view", "pipe")
    assert "no such file" in edit("view", "nowhere").lower()


def test_undo_leaves_the_repository_as_it_was(env: Any) -> None:
    """The published editor's undo of create leaves an empty file."""
    env.reset(options={"task": 0})
    look = bash(
        "find . -path ./.git -prune -o -printf '%p %y %m %l\\n' | sort; cat run.sh empty | od -c; git status --short"
    )

    def edit(command: str, path: str, **arguments: Any) -> str:
        return last(env, ToolCall("edit", {"command": command, "path": path, **arguments}))

    script = "printf '#!/bin/sh\\r\\n\\techo 1' > run.sh; chmod 750 run.sh; ln -s run.sh link"
    last(env, bash(f"{script}; mkdir -p old/empty; touch empty"))
    before = last(env, look)
    for path in ("new.py", "old/new.py", "old/empty/new.py", "a/b/c.py", "a b/'c'.py", "/work/a/../d/-e"):
        assert edit("create", path, file_text="x = 1\n").startswith("Created")
        assert edit("undo", path).startswith("Removed")
        assert last(env, look) == before, path
    for path in ("run.sh", "link"):
        assert edit("str_replace", path, old_str="echo 1", new_str="echo 2").startswith("Changed")
        assert "750" in last(env, bash("stat -c %a run.sh")) and last(env, bash("readlink link")) == "run.sh"
        assert edit("undo", path).startswith("Took back")
    assert edit("insert", "empty", insert_line=0, new_str="x").startswith("Changed")
    edit("undo", "empty")
    assert last(env, look) == before
    edit("create", "a/b/c.py", file_text="x = 1\n")
    last(env, bash("touch a/other"))
    edit("undo", "a/b/c.py")
    assert last(env, bash("find a")) == "a\na/other"


def test_what_can_not_be_written_is_not_said_to_be_missing(env: Any) -> None:
    env.reset(options={"task": 0})
    last(env, bash("mkdir shut; echo 1 > shut/f; chmod 444 shut/f; chmod 555 shut; mkdir locked"))

    def edit(command: str, path: str, **arguments: Any) -> str:
        return last(env, ToolCall("edit", {"command": command, "path": path, **arguments}))

    assert "shut/f can't be written: it, or a folder that it is in, is read-only." in edit(
        "str_replace", "shut/f", old_str="1", new_str="2"
    )
    for path in ("shut/new", "/usr/new", "shut/a/b"):
        assert f"{path} can't be written" in edit("create", path, file_text="x")
    edit("create", "locked/f", file_text="x")
    last(env, bash("chmod 555 locked"))
    assert "locked/f can't be removed" in edit("undo", "locked/f")
    last(env, bash("chmod 755 locked"))
    assert edit("undo", "locked/f") == "Removed locked/f again."


def test_a_task_past_its_turns_is_graded(env: Any) -> None:
    short = SweEnv(max_turns=1)
    short.reset(options={"task": 0})
    _, reward, terminated, truncated, info = short.step(bash("true"))
    short.close()
    assert (reward, terminated, truncated, info["stop_reason"]) == (0.0, False, True, "max_turns")


def test_code_that_hangs_the_tests_scores_0(env: Any, play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """SWE-smith#26: tests of a repair hang."""
    monkeypatch.setattr("skyrl_gym.envs.swe.grading.SHIPPED_TESTS_S", 3.0)
    task = env.tasks[0]
    package = read_instance(task).repo.rpartition("/")[2]
    reward, metrics = play(task, bash(f"printf '\\nwhile True: pass\\n' >> {package}/__init__.py"))
    assert (reward, metrics["tests_ran"]) == (0.0, 0.0)


def test_tests_that_can_not_be_begun_are_no_wrong_answer(env: Any, play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skyrl_gym.envs.swe.grading.PYTHON_ENV", {"PYTHONHOME": "/nowhere"})
    with pytest.raises(GradeError, match="could not be begun"):
        play(env.tasks[0])


def test_without_bubblewrap_a_reset_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    env, before = SweEnv(), default_ledger().live
    asyncio.run(_open_and_close(env))  # fills the cache
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match=r"^[^\n]*not installed[^\n]*$"):
        asyncio.run(_open_and_close(env))
    assert default_ledger().live == before


async def _open_and_close(env: SweEnv) -> None:
    try:
        await env.areset(options={"task": 0})
    finally:
        await env.aclose()


def test_a_grade_shows_the_patch_that_was_graded(env: Any) -> None:
    task = env.tasks[0]
    env.reset(options={"task": task})
    assert env._drive(env.agrade()).artifacts == {"patch": ""}
    for action in gold_actions(task)[:-1]:
        env.step(action)
    env.step(bash("echo x > new.py; echo '# y' >> tests/test_*.py"))
    patch = env._drive(env.agrade()).artifacts["patch"]
    added = [line for line in str(task.data["patch"]).splitlines() if line[:1] == "+" and line[:3] != "+++"]
    assert added and all(line in patch.splitlines() for line in added)
    assert "--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+x\n" in patch
    assert "tests/" not in patch


def test_who_plays_a_task_again_gets_a_sandbox_that_was_started_meanwhile() -> None:
    async def main() -> None:
        env, before = SweEnv(), default_ledger().live
        for _ in range(2):
            await env.areset(options={"task": 0})
        assert env._pool is not None
        await asyncio.gather(*env._pool._tasks)
        assert env._pool.ready == 1
        await env.areset(options={"task": 0})
        assert (await env._current.place.box.exec("ls", timeout_s=10)).code == 0
        await env.aclose()
        assert default_ledger().live == before

    asyncio.run(main())


def test_a_setup_that_fails_after_its_sandbox_was_opened_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    env, before = SweEnv(), default_ledger().live
    monkeypatch.setattr("skyrl_gym.envs.swe.env.Template", lambda text: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        env.reset(options={"task": 0})
    env.close()
    assert default_ledger().live == before


def test_a_real_task(play: Any, real_tasks: TaskSet) -> None:
    task = real_tasks.find("r1chardj0n3s__parse-1.20.1")
    try:
        assert play(task)[0] == 0.0
    except SetupError as error:
        pytest.skip(f"the package index can't be reached: {error}")
    assert play(task, *gold_actions(task)[:-1])[0] == 1.0
