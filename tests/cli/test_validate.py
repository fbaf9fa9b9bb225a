"""`skyrl validate`: a table or JSON, and an exit status."""

import json
from collections.abc import Callable
from typing import Any

Skyrl = Callable[..., Any]


def test_the_memory_suite_is_valid(skyrl: Skyrl) -> None:
    ran = skyrl("validate", "skyrl/memory-v0", "--tasks", "4", "--set", "document_words=60")
    assert ran.status == 0, ran.err
    assert "gold after reading" in ran.out and "4/4 tasks" in ran.out and "failed" not in ran.out
    assert "validate 4/4" in ran.err


def test_a_suite_without_a_gold_solution_says_so(skyrl: Skyrl, colours: str) -> None:
    ran = skyrl("validate", "colour-v0", "--registry", colours)
    assert ran.status == 0
    assert "nothing" in ran.out and "No gold solution is declared" in ran.out


def test_failures_are_listed_and_end_with_1(skyrl: Skyrl, colours: str) -> None:
    ran = skyrl("validate", "colour-v0", "--registry", colours, "--set", "fault=bug")
    assert ran.status == 1
    assert "0/3 tasks" in ran.out
    assert "snow: nothing: not judged, crash: no such thing" in ran.out


def test_json_holds_every_result(skyrl: Skyrl, colours: str) -> None:
    ran = skyrl("validate", "colour-v0", "--registry", colours, "--json")
    found = json.loads(ran.out)
    assert found["passed"] and found["probes"] == {"nothing": {"passed": 3, "tasks": 3}}
    assert {result["task_id"] for result in found["results"]} == {"snow", "coal", "grass"}
    assert all(result["reward"] == 0.0 and result["passed"] for result in found["results"])
