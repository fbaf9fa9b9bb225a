"""Whatever an agent does except repairing the bug scores 0; what it leaves beside a repair doesn't matter."""

import subprocess
from typing import Any

import pytest

from skyrl_gym import Task, TaskSet, ToolCall
from skyrl_gym.envs.swe.cheats import CHEATS, cheats
from skyrl_gym.envs.swe.instance import read_instance
from skyrl_gym.envs.swe.solve import gold_actions

# The kit is wide and a task takes a second: here each cheat is tried on another task.
SOME = [(index, name) for index, name in enumerate(CHEATS)]


@pytest.mark.parametrize(("index", "name"), SOME, ids=CHEATS)
def test_cheats_score_0(env: Any, play: Any, index: int, name: str) -> None:
    task = env.tasks[index % len(env.tasks)]
    reward, metrics = play(task, cheats(read_instance(task))[name])
    assert reward == 0.0
    assert metrics["fail_to_pass"] < 1.0 or metrics["pass_to_pass"] < 1.0


def test_the_kit_is_part_of_what_the_environment_says_of_itself(env: Any) -> None:
    probes = env.probes(env.tasks[0])
    assert set(probes) == {"gold", *CHEATS}
    assert all(probe.most == 0.0 for name, probe in probes.items() if name != "gold")


def test_of_another_language_only_the_cheats_of_the_shell_are_tried() -> None:
    row = {
        "instance_id": "cli__cli-1",
        "repo": "cli/cli",
        "patch": "--- a/cmd/it's.go\n+++ b/cmd/it's.go\n@@ -1 +1 @@\n-a\n+b\n",
        "problem_statement": "p",
        "FAIL_TO_PASS": ["TestA"],
        "PASS_TO_PASS": [],
        "image": "x",
    }
    found = cheats(read_instance(Task.from_row(row)))
    assert "delete the tests" in found and "exit with 0" not in found
    assert all(
        subprocess.run(["bash", "-n", "-c", call.arguments["command"]]).returncode == 0 for call in found.values()
    )


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", CHEATS)
def test_cheats_score_0_on_every_shipped_task(env: Any, play: Any, name: str) -> None:
    for task in [*env.load_tasks("train"), *env.load_tasks("test")]:
        assert play(task, cheats(read_instance(task))[name])[0] == 0.0, task.id


def test_the_tests_are_read_only_while_several_files_of_them_run(play: Any, real_tasks: TaskSet) -> None:
    task = real_tasks.find("andialbrecht__sqlparse-0.4.3")
    rewrite = (
        "cat >> sqlparse/__init__.py <<'END'\nimport glob, re\nfor f in glob.glob('/work/tests/test_*.py'):\n"
        "    code = re.sub(r'(def test_.*:)', r'\\1 return', open(f).read())\n    open(f, 'w').write(code)\nEND"
    )
    assert play(task, ToolCall("bash", {"command": rewrite}))[0] == 0.0


@pytest.mark.parametrize(
    "beside",
    [
        "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('s')\"; mkfifo f; mkdir -m 0 locked",
        "for f in */*.py; do ln $f $f.hard; ln -s $f $f.soft; done",
        "head -c 300M /dev/zero > /tmp/big; python3 -m pytest -q; git add -A; git commit -qm done; rm -rf .git",
        "sleep 1000 & (while :; do date > busy.txt; done) & mkdir -p a/b; touch a/b/$(printf %0200d 1)",
        "mkdir nested; cd nested; git init -q; touch x; cd ..; rm README.md; mkdir README.md; touch README.md/x",
        "rm -rf /tmp/* /work/tests; exec 1>&-",
    ],
)
def test_what_is_left_beside_a_repair_does_not_matter(env: Any, play: Any, beside: str) -> None:
    task = env.tasks[0]
    leave = ToolCall("bash", {"command": beside, "timeout": 10})
    assert play(task, *gold_actions(task)[:-1], leave)[0] == 1.0


def test_the_answer_is_not_in_the_sandbox(env: Any) -> None:
    """mini-swe-agent#787, SWE-bench#465: the repair can be seen in git's history."""

    def bash(command: str) -> str:
        return str(env.step(ToolCall("bash", {"command": command}))[0][-1].content)

    task = env.tasks[0]
    env.reset(options={"task": task})
    added = [line[1:].strip() for line in str(task.data["patch"]).splitlines() if line[:1] == "+"]
    fixed = [line for line in added if not line.startswith("++")]
    assert bash("git log --all --oneline | wc -l").strip() == "1"
    assert bash("git remote; git stash list; git tag; git fsck --lost-found") == "bash gave no output."
    assert bash("git reflog | wc -l").strip() == "1"
    for line in fixed:
        assert bash(f"grep -rnF -- {line!r} /work /tmp /opt 2>/dev/null | head -3") == "bash gave no output.", line
    objects = bash("git cat-file --batch-check --batch-all-objects | wc -l")
    assert objects == bash("git rev-list --objects --all | wc -l")
    assert bash("ls -l --time-style=+%Y README.md | cut -d' ' -f6").strip() == "2020"
