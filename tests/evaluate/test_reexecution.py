"""Recorded actions are re-executed: to find where a run can't be repeated, and to grade anew."""

import asyncio
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyrl_gym import ToolCall
from skyrl_gym.errors import ConfigError, StopReason
from skyrl_gym.evaluate import Run, evaluate, open_run
from skyrl_gym.evaluate.divergence import DIVERGED, Divergence, first_divergence
from skyrl_gym.evaluate.reexecution import reexecute
from skyrl_gym.evaluate.rescoring import rescore
from skyrl_gym.messages import assistant
from skyrl_gym.policy import Completion, Prompt, Sampling, ScriptedPolicy
from skyrl_gym.registration import make_env
from skyrl_gym.rollout import RolloutLimits

Record = Callable[..., Run]


class Cut:
    """Answers in text that is cut in its second turn."""

    name = "cut"
    renderer = None

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        return Completion("well,") if len(prompt.messages) == 1 else Completion('<tool_call>{"na', "length")

    async def aclose(self) -> None:
        pass


def look_then_answer(prompt: Prompt) -> ToolCall:
    return ToolCall("answer", {"word": "yes"}) if len(prompt.messages) > 1 else ToolCall("look")


@pytest.fixture
def record(guess: str, tmp_path: Path) -> Record:
    """Evaluates some rows, which lie in a file, so that they can be found again."""

    def record(rows: list[dict[str, Any]], policy: Any = None, samples: int = 1) -> Run:
        (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        policy = policy or ScriptedPolicy(look_then_answer)
        kwargs = {"tasks": str(tmp_path / "tasks.jsonl")}
        evaluation = evaluate(
            guess,
            policy,
            tasks=make_env(guess, **kwargs).tasks,
            samples=samples,
            out_dir=tmp_path / "run",
            env_kwargs=kwargs,
            limits=RolloutLimits(live=4, retries=0),
        )
        asyncio.run(evaluation)
        return open_run(tmp_path / "run")

    return record


def divergences(run: Run, **more: Any) -> dict[str, Divergence | None]:
    async def play() -> dict[str, Divergence | None]:
        return {
            again.recorded.task_id: first_divergence(again.recorded, again.played, **more)
            async for again in reexecute(run)
            if again.played is not None
        }

    return asyncio.run(play())


def change(run: Run, old: str, new: str) -> None:
    """Plants a change in the journal."""
    journal = run.path / "trajectories.jsonl"
    assert old in journal.read_text()
    journal.write_text(journal.read_text().replace(old, new, 1))


ROWS = [{"id": f"t{i}", "word": "yes" if i % 2 else "no", "hint": f"hint {i}"} for i in range(6)]


def test_a_run_that_is_repeated_exactly_has_no_difference(record: Record) -> None:
    assert divergences(record(ROWS)) == dict.fromkeys([row["id"] for row in ROWS])


def test_a_planted_difference_is_found_at_its_first_step(record: Record) -> None:
    run = record(ROWS)
    change(run, '"content":"hint 3"', '"content":"hint\\u2028 four"')
    found = divergences(run)
    assert [task for task, divergence in found.items() if divergence] == ["t3"]
    assert found["t3"] == Divergence(
        "turn 1",
        "--- recorded\n+++ replayed\n@@ -1,3 +1,3 @@\n [tool] answers call_0_0\n-hint\u2028 four\n+hint 3\n reward 0",
    )


@pytest.mark.parametrize(
    ("old", "new", "step", "shown"),
    [
        ("Task t0: what", "Task t0: which", "opening", "-Task t0: which is the word?"),
        ('"finish_reason":"stop","reward":0.0', '"finish_reason":"stop","reward":0.5', "turn 1", "-reward 0.5"),
        ('"stop_reason":"done"', '"stop_reason":"max_turns"', "end", "-ended with max_turns"),
        ('"reward":0.0,"metrics"', '"reward":1.0,"metrics"', "grade", "-reward 1.0"),
        ('"context_edit":false', '"context_edit":true', "turn 1", "-the conversation was replaced"),
    ],
)
def test_every_part_of_a_trajectory_is_compared(record: Record, old: str, new: str, step: str, shown: str) -> None:
    run = record(ROWS[:1])
    change(run, old, new)
    divergence = divergences(run)["t0"]
    assert divergence is not None and divergence.step == step
    assert shown in divergence.diff


def test_an_episode_that_ends_earlier_or_later_differs(record: Record) -> None:
    run = record(ROWS[:1])
    change(run, '"name":"answer"', '"name":"look"')
    later = divergences(run)["t0"]
    assert later is not None and later.step == "turn 2"
    run = record(ROWS[:1])
    change(run, '"name":"look","arguments":"{}"', '"name":"answer","arguments":"{\\"word\\": \\"no\\"}"')
    earlier = divergences(run)["t0"]
    assert earlier is not None and earlier.step == "turn 1"


def test_what_may_differ_is_ignored(record: Record) -> None:
    run = record(ROWS[:1])
    change(run, '"content":"hint 0"', '"content":"hint 712"')
    assert divergences(run)["t0"] is not None
    assert divergences(run, ignore=re.compile(r"\d+"))["t0"] is None


def test_what_the_runner_cut_is_repeated_too(record: Record) -> None:
    run = record(ROWS[:1], Cut())
    (recorded,) = run.trajectories()
    assert recorded.stop_reason is StopReason.LENGTH and len(recorded.turns) == 2
    assert divergences(run) == {"t0": None}


def test_a_task_that_is_no_longer_there_is_named(record: Record, tmp_path: Path) -> None:
    run = record(ROWS)
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[:4]))
    with pytest.raises(ConfigError, match=r"2 tasks of .* are not among those of guess-v0 \(such as 't[45]'\)"):
        divergences(run)


def score(run: Run, out: Path, **settings: Any) -> Any:
    return asyncio.run(rescore(run, out, **settings))


def test_scores_agree_where_nothing_changed_and_the_run_is_left_alone(record: Record, tmp_path: Path) -> None:
    run = record(ROWS, samples=2)
    before = {file.name: file.read_bytes() for file in run.path.iterdir()}
    summary = score(run, tmp_path / "scored")
    assert summary.reward == run.summary.reward and summary.pass_at == run.summary.pass_at  # type: ignore[union-attr]
    assert summary.metrics == {DIVERGED: 0.0}
    assert {file.name: file.read_bytes() for file in run.path.iterdir()} == before
    scored = open_run(tmp_path / "scored")
    assert scored.summary == summary and scored.config["scored_from"] == str(run.path)
    old = {trajectory.key: trajectory for trajectory in run.trajectories()}
    for trajectory in scored.trajectories():
        assert trajectory.turns == old[trajectory.key].turns and trajectory.opening == old[trajectory.key].opening


def test_a_changed_grade_is_corrected_and_a_changed_answer_counted(record: Record, tmp_path: Path) -> None:
    run = record(ROWS[:2])
    change(run, '"reward":0.0,"metrics"', '"reward":1.0,"metrics"')
    change(run, '"content":"hint 1"', '"content":"other"')
    summary = score(run, tmp_path / "scored")
    assert summary.reward.value == 0.5 and summary.metrics == {DIVERGED: 0.5}


def test_where_the_judge_was_down_there_is_a_grade_now(record: Record, tmp_path: Path) -> None:
    (tmp_path / "outage").touch()
    (tmp_path / "gone").touch()
    rows = [
        {**ROWS[1], "judge_down_while": str(tmp_path / "outage")},
        {**ROWS[3], "lost_while": str(tmp_path / "gone")},
    ]
    run = record([*rows, ROWS[0]])
    assert run.summary is not None and run.summary.excluded_by == {"grade_error": 1, "sandbox_lost": 1}
    still = score(run, tmp_path / "still")
    assert still.excluded_by == {"grade_error": 1, "sandbox_lost": 1}
    (tmp_path / "outage").unlink()
    mended = score(run, tmp_path / "mended")
    assert mended.excluded_by == {"sandbox_lost": 1} and mended.judged == 2
    graded = [found for found in open_run(tmp_path / "mended").trajectories() if found.reward is not None]
    assert [found.artifacts for found in graded] == [{"word": "yes"}] * 2


def test_scores_never_overwrite(record: Record, tmp_path: Path) -> None:
    run = record(ROWS[:1])
    (tmp_path / "taken").mkdir()
    for folder in (tmp_path / "taken", run.path):
        with pytest.raises(ConfigError, match="exists already"):
            score(run, folder)


CALLS = st.sampled_from(
    [ToolCall("look"), ToolCall("answer", {"word": "yes"}), ToolCall("answer", {"wrod": 1}), ToolCall("dance")]
)
ANSWERS = st.lists(CALLS.map(lambda call: assistant(None, call)) | st.just(assistant("words")), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(answers=ANSWERS)
def test_whatever_was_done_is_repeated_exactly(answers: list[Any]) -> None:
    """On the memory suite, whose tools replace the conversation."""
    calls = {"look": "update_memory", "answer": "answer", "dance": "dance"}
    kwargs = {"document_words": 60, "chunk_words": 20, "tasks": None, "task_count": 2}
    script = iter(answers * 20)

    def answer(prompt: Prompt) -> Any:
        message = next(script)
        if not message.tool_calls:
            return message.text
        (call,) = message.tool_calls
        return ToolCall(calls[call.name], {"memory": "m"} if call.name == "look" else {"text": "x"})

    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "run"
        tasks = make_env("skyrl/memory-v0", **kwargs).tasks
        limits = RolloutLimits(live=1)
        evaluation = evaluate(
            "skyrl/memory-v0",
            ScriptedPolicy(answer),
            tasks=tasks,
            samples=1,
            out_dir=out,
            env_kwargs=kwargs,
            limits=limits,
        )
        asyncio.run(evaluation)
        assert set(divergences(open_run(out)).values()) == {None}
