"""A run folder is filled, completed and protected."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym import Task, TaskSet
from skyrl_gym.envs.memory import MemoryEnv
from skyrl_gym.errors import ConfigError, RunAborted
from skyrl_gym.evaluate import Summary, evaluate, open_run
from skyrl_gym.messages import ToolCall
from skyrl_gym.policy import Completion, Sampling, ScriptedPolicy
from skyrl_gym.policy.base import Prompt
from skyrl_gym.progress import Progress
from skyrl_gym.registration import make_env
from skyrl_gym.rollout import RolloutLimits

NO_RETRY = RolloutLimits(live=8, retries=0)


def rows(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"id": f"t{i}", "word": "yes" if i % 2 else "no", "hint": "a hint", **fields} for i in range(count)]


def always(word: str = "yes") -> ScriptedPolicy:
    return ScriptedPolicy(lambda prompt: ToolCall("answer", {"word": word}))


def run(env_id: str, policy: ScriptedPolicy, tasks: Any, out: Path, samples: int = 1, **more: Any) -> Summary:
    settings: dict[str, Any] = {"limits": NO_RETRY, **more}
    return asyncio.run(evaluate(env_id, policy, tasks=tasks, samples=samples, out_dir=out, **settings))


def test_a_run_folder_holds_what_was_asked_and_what_came(guess: str, tmp_path: Path) -> None:
    told: list[Progress] = []
    tasks = TaskSet.from_rows(rows(4), "four")
    summary = run(guess, always(), tasks, tmp_path / "run", 3, on_progress=told.append, sampling=Sampling(seed=7))
    assert summary.reward.value == 0.5 and (summary.judged, summary.tasks) == (12, 4)
    assert sorted(summary.pass_at) == [1, 2]
    assert (told[-1].done, told[-1].total, told[-1].reward) == (12, 12, 0.5)
    held = open_run(tmp_path / "run")
    assert held.kind == "eval" and held.summary == summary
    assert held.config["env_id"] == guess and held.config["policy"] == "scripted"
    assert held.config["sampling"]["seed"] == 7 and held.config["tasks"]["count"] == 4
    assert held.provenance["python"] and held.provenance["packages"]["skyrl-suite"]
    assert len(list(held.trajectories())) == 12
    files = {".lock", "run.json", "rollout.jsonl", "trajectories.jsonl", "summary.json", "spending.json"}
    assert {file.name for file in held.path.iterdir()} == files


@pytest.mark.parametrize("live", [1, 2, 4, 64])
def test_every_task_is_judged_so_often_as_asked_however_many_run_at_once(guess: str, tmp_path: Path, live: int) -> None:
    """7 tasks x 3 samples: no number of places but the first divides them."""
    limits = RolloutLimits(live=live, retries=0)
    summary = run(guess, always(), TaskSet.from_rows(rows(7), "seven"), tmp_path / "run", 3, limits=limits)
    assert (summary.judged, summary.total, summary.tasks) == (21, 21, 7)
    found = [(t.task_id, t.sample) for t in open_run(tmp_path / "run").trajectories()]
    assert sorted(found) == [(f"t{i}", sample) for i in range(7) for sample in range(3)]


@pytest.mark.parametrize(
    ("model", "given", "shown"),
    [
        ("mistral", {}, "[TOOL_CALLS]"),
        ("mistral", {"dialect": "auto"}, "[TOOL_CALLS]"),
        ("chatml", {}, "<tool_call>"),
        ("mistral", {"dialect": "react"}, "Action Input:"),
        (None, {}, "<tool_call>"),
    ],
    ids=["as the model writes", "auto", "a template without tools", "a dialect that was named", "no template"],
)
def test_prompts_show_calls_as_the_model_writes_them(
    model: Any, given: dict[str, str], shown: str, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    from skyrl_gym.chat import Renderer
    from skyrl_gym.chat.testing import tiny_tokenizer

    renderer = None if model is None else Renderer(tiny_tokenizer(model))
    policy = ScriptedPolicy(lambda prompt: ToolCall("answer", {"text": "52"}, "callaaaa1"), renderer=renderer)
    settings = {"document_words": 30, "worked_example": True, **given}
    tasks = MemoryEnv(document_words=30).tasks.take(1)
    run("skyrl/memory-v0", policy, tasks, tmp_path / "run", env_kwargs=settings)
    (trajectory,) = open_run(tmp_path / "run").trajectories()
    assert shown in "".join(message.text for message in trajectory.opening)
    again = make_env("skyrl/memory-v0", **open_run(tmp_path / "run").config["env_kwargs"])
    opening, _ = again.reset(options={"task": tasks[0]})
    assert tuple(opening) == trajectory.opening  # without the model
    again.close()


class Slow(ScriptedPolicy):
    """Takes longer than the runner's metrics do."""

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        await asyncio.sleep(5.5)
        return await super().complete(prompt, sampling)


def test_while_it_goes_on_it_tells_what_its_runner_is_at(guess: str, tmp_path: Path) -> None:
    told: list[Progress] = []
    policy = Slow(lambda prompt: ToolCall("answer", {"word": "yes"}))
    run(guess, policy, TaskSet.from_rows(rows(4)), tmp_path / "run", on_progress=told.append)
    assert any(progress.detail.get("running") == 4 for progress in told)
    assert (told[-1].done, dict(told[-1].detail)) == (4, {})


def test_a_complete_run_is_not_run_again(guess: str, tmp_path: Path) -> None:
    tasks = TaskSet.from_rows(rows(5))
    first = run(guess, always(), tasks, tmp_path / "run", 2)
    again = always()
    assert run(guess, again, tasks, tmp_path / "run", 2) == first
    assert again.calls == 0


def test_what_was_judged_stays_and_only_failures_are_tried_again(guess: str, tmp_path: Path) -> None:
    """297 scored and 3 failed: 3 run."""
    outage = tmp_path / "outage"
    outage.touch()
    source = rows(297) + [{**row, "id": f"lost{i}", "lost_while": str(outage)} for i, row in enumerate(rows(3))]
    tasks = TaskSet.from_rows(source)
    first = run(guess, always(), tasks, tmp_path / "run")
    assert (first.judged, first.excluded_by) == (297, {"sandbox_lost": 3})
    before = (tmp_path / "run" / "trajectories.jsonl").read_bytes().splitlines()
    outage.unlink()
    policy = always()
    second = run(guess, policy, tasks, tmp_path / "run")
    assert policy.calls == 3
    assert (second.judged, second.excluded, second.total) == (300, 0, 300)
    after = (tmp_path / "run" / "trajectories.jsonl").read_bytes().splitlines()
    assert after[:297] == [line for line in before if b"sandbox_lost" not in line]
    assert (tmp_path / "run" / "excluded.jsonl").read_bytes().count(b"sandbox_lost") >= 3


def test_failures_that_stay_are_still_counted_once(guess: str, tmp_path: Path) -> None:
    outage = tmp_path / "outage"
    outage.touch()
    tasks = TaskSet.from_rows(rows(2) + rows(1, id="lost", lost_while=str(outage)))
    for _ in range(3):
        summary = run(guess, always(), tasks, tmp_path / "run")
        assert (summary.total, summary.judged, summary.excluded) == (3, 2, 1)


def test_a_torn_last_line_is_run_again(guess: str, tmp_path: Path) -> None:
    tasks = TaskSet.from_rows(rows(4))
    first = run(guess, always(), tasks, tmp_path / "run")
    journal = tmp_path / "run" / "trajectories.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])
    policy = always()
    assert run(guess, policy, tasks, tmp_path / "run").reward == first.reward
    assert policy.calls == 1 and len(journal.read_bytes().splitlines()) == 4


def test_a_judge_that_fails_is_no_zero(guess: str, tmp_path: Path) -> None:
    outage = tmp_path / "outage"
    outage.touch()
    tasks = TaskSet.from_rows(rows(2, word="yes") + rows(1, id="unjudged", word="yes", judge_down_while=str(outage)))
    summary = run(guess, always(), tasks, tmp_path / "run")
    assert summary.reward.value == 1.0 and summary.pass_at[1].value == 1.0
    assert summary.excluded_by == {"grade_error": 1}
    everything = TaskSet.from_rows(rows(3, judge_down_while=str(outage)))
    starved = run(guess, always(), everything, tmp_path / "starved")
    assert starved.starved and starved.reward.value is None
    (*_, last) = open_run(tmp_path / "starved").trajectories()
    assert last.reward is None and last.error is not None and "402" in last.error.message


def test_no_tasks_and_no_samples_are_refused(guess: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one task"):
        run(guess, always(), TaskSet.from_rows([]), tmp_path / "run")
    with pytest.raises(ConfigError, match="samples=0"):
        run(guess, always(), TaskSet.from_rows(rows(1)), tmp_path / "run", 0)
    assert not (tmp_path / "run").exists()


def test_tasks_of_equal_content_are_one(guess: str, tmp_path: Path) -> None:
    same = [Task("one", {"word": "yes", "hint": "-"}), Task("two", {"hint": "-", "word": "yes"})]
    summary = run(guess, always(), same, tmp_path / "run", 2)
    assert (summary.tasks, summary.total) == (1, 2)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"samples": 2}, "samples"),
        ({"sampling": Sampling(temperature=0.3)}, "sampling"),
        ({"env_kwargs": {"max_turns": 3}}, "env_kwargs"),
        ({"tasks": TaskSet.from_rows(rows(3))}, "tasks"),
        ({"limits": RolloutLimits(max_context=100)}, "max_context"),
    ],
)
def test_a_folder_with_other_settings_is_refused_and_says_which(
    guess: str, tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    settings = {"tasks": TaskSet.from_rows(rows(2)), "samples": 1}
    run(guess, always(), out=tmp_path / "run", **settings)
    files = {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()}
    with pytest.raises(ConfigError, match=rf"other settings \({named}\)"):
        run(guess, always(), out=tmp_path / "run", **{**settings, **change})
    assert {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()} == files


def test_concurrency_is_no_setting_of_the_result(guess: str, tmp_path: Path) -> None:
    tasks = TaskSet.from_rows(rows(4))
    run(guess, always(), tasks, tmp_path / "run", limits=RolloutLimits(live=1))
    run(guess, always(), tasks, tmp_path / "run", limits=RolloutLimits(live=4))


def test_a_second_writer_is_refused(guess: str, tmp_path: Path) -> None:
    holder = "import fcntl, sys; f = open(sys.argv[1], 'ab'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
    (tmp_path / "run").mkdir()
    command = [sys.executable, "-c", holder, str(tmp_path / "run" / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(ConfigError, match="being written by another run"):
            run(guess, always(), TaskSet.from_rows(rows(1)), tmp_path / "run")
        other.communicate("\n")
    assert run(guess, always(), TaskSet.from_rows(rows(1)), tmp_path / "run").judged == 1


def test_a_bug_leaves_no_summary_and_keeps_what_was_finished(guess: str, tmp_path: Path) -> None:
    asked = 0

    def answer(prompt: Prompt) -> ToolCall:
        nonlocal asked
        asked += 1
        if asked == 3:
            raise ZeroDivisionError
        return ToolCall("answer", {"word": "yes"})

    tasks = TaskSet.from_rows(rows(5))
    with pytest.raises(RunAborted):
        run(guess, ScriptedPolicy(answer), tasks, tmp_path / "run", limits=RolloutLimits(live=1))
    held = open_run(tmp_path / "run")
    assert held.summary is None
    assert sum(trajectory.valid for trajectory in held.trajectories()) == 2
    policy = always()
    assert run(guess, policy, tasks, tmp_path / "run").judged == 5
    assert policy.calls == 3


def test_killed_at_any_moment_it_goes_on(guess: str, tmp_path: Path) -> None:
    """SIGKILL while trajectories are written; nothing is lost, torn or done twice."""
    registry = tmp_path / "registry" / "registry.yaml"
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(200)))
    program = """
import asyncio, os, signal, sys
from pathlib import Path
from skyrl_gym import TaskSet
from skyrl_gym.evaluate import evaluate
from skyrl_gym.messages import ToolCall
from skyrl_gym.policy import ScriptedPolicy
from skyrl_gym.registration import register_file
from skyrl_gym.rollout import RolloutLimits

register_file(sys.argv[1])
kill_at = int(sys.argv[4])

def watch(progress):
    if progress.done == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)

policy = ScriptedPolicy(lambda prompt: ToolCall("answer", {"word": "yes"}))
tasks = TaskSet.load(sys.argv[2])
asyncio.run(evaluate("guess-v0", policy, tasks=tasks, samples=1, out_dir=Path(sys.argv[3]), on_progress=watch,
                     limits=RolloutLimits(live=8)))
"""
    command = [sys.executable, "-c", program, str(registry), str(tmp_path / "tasks.jsonl"), str(tmp_path / "run")]
    for kill_at in (11, 90, 153):
        killed = subprocess.run([*command, str(kill_at)], env=os.environ, capture_output=True, timeout=60)
        assert killed.returncode == -9, killed.stderr
        kept = [trajectory.key for trajectory in open_run(tmp_path / "run").trajectories()]
        assert len(kept) == len(set(kept)) >= kill_at
    policy = always()
    summary = run(guess, policy, TaskSet.load(tmp_path / "tasks.jsonl"), tmp_path / "run", limits=RolloutLimits(live=8))
    assert summary.judged == 200 and policy.calls <= 200 - len(kept)
