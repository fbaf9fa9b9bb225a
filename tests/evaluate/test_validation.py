"""Tasks and graders are checked by probes whose reward is known."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym import Probe, Task
from skyrl_gym.evaluate.validation import ProbeResult, probe_counts, validate


def run(env_id: str, *rows: dict[str, Any], **settings: Any) -> dict[tuple[str, str], ProbeResult]:
    async def play() -> list[ProbeResult]:
        tasks = [Task.from_row(row) for row in rows]
        return [result async for results in validate(env_id, tasks, **settings) for result in results]

    return {(result.task_id, result.probe): result for result in asyncio.run(play())}


GOOD = {"id": "good", "word": "yes", "hint": "no"}


def test_a_good_task_passes_every_probe_and_doing_nothing_is_one_of_them(guess: str) -> None:
    found = run(guess, GOOD)
    assert {name: result.reward for (_, name), result in found.items()} == {"nothing": 0.0, "gold": 1.0, "hint": 0.0}
    assert all(result.passed for result in found.values())


def test_a_gold_that_does_not_solve_and_a_cheat_that_does_are_named(guess: str) -> None:
    found = run(guess, GOOD, {**GOOD, "id": "gold", "said to be": "maybe"}, {**GOOD, "id": "leak", "hint": "yes"})
    failed = {key: result.problem for key, result in found.items() if not result.passed}
    assert failed == {
        ("gold", "gold"): "earned 0, expected at least 1",
        ("leak", "hint"): "earned 1, expected at most 0",
    }
    assert probe_counts(found.values()) == {"nothing": (3, 3), "gold": (2, 3), "hint": (2, 3)}


def test_a_grader_that_fails_is_no_pass_even_where_nothing_is_to_be_earned(guess: str, tmp_path: Path) -> None:
    (tmp_path / "outage").touch()
    found = run(guess, {**GOOD, "judge_down_while": str(tmp_path / "outage")})
    assert {result.reward for result in found.values()} == {None}
    assert found["good", "nothing"].problem == "not judged, grade_error: 402 payment required"


def test_a_bug_in_one_task_is_told_and_stops_no_other(guess: str) -> None:
    found = run(guess, GOOD, {**GOOD, "id": "bug", "judge_down_while": 7})
    assert "crash" in found["bug", "gold"].problem
    assert found["good", "gold"].passed


def test_an_environment_that_cannot_say_its_probes_fails_that_task(guess: str) -> None:
    found = run(guess, GOOD, {"id": "empty"})
    assert found["empty", ""].problem == "task empty has no word"
    assert found["good", "gold"].passed


@pytest.mark.parametrize("at_once", [1, 3, 64])
def test_tasks_are_checked_side_by_side(guess: str, at_once: int) -> None:
    found = run(guess, *({**GOOD, "id": f"t{i}"} for i in range(10)), concurrency=at_once)
    assert len(found) == 30 and all(result.passed for result in found.values())


def test_bounds_are_told_in_words() -> None:
    assert Probe((), least=1.0).expected == "at least 1"
    assert Probe((), most=0.25).expected == "at most 0.25"
    assert Probe((), least=1.0, most=1.0).expected == "1"
    assert Probe((), least=0.5, most=1.0).expected == "at least 0.5 and at most 1"
    assert Probe(()).expected == "any reward" and Probe(()).allows(-3.0)
