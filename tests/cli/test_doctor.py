"""`skyrl doctor` and the needs behind it."""

from collections.abc import Callable
from typing import Any

import pytest

from skyrl_gym.cli.needs import check_need, extras, missing_needs
from skyrl_gym.registration import registered
from skyrl_gym.sandbox import bubblewrap_problem

Skyrl = Callable[..., Any]


def test_it_lists_the_machine_the_extras_and_every_environment(skyrl: Skyrl) -> None:
    ran = skyrl("doctor")
    assert ran.status == 0
    for text in (
        "Python 3.",
        "GPU",
        "train",
        "smollm2-135m",
        "bubblewrap",
        "docker",
        *(entry.id for entry in registered()),
    ):
        assert text in ran.out


def test_each_need_is_explained_once_and_named_where_it_keeps_an_environment_from_running(
    skyrl: Skyrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    parts, _, suites = skyrl("doctor").out.partition("\n\n")
    assert parts.count("DOCKER_HOST") == 1
    missing = [line.split() for line in suites.splitlines() if "swe-bench-lite-v0" in line]
    assert missing == [["skyrl/swe-bench-lite-v0", "missing", "docker,", "hub"]]


def test_what_is_missing_is_said_with_the_way_to_get_it(skyrl: Skyrl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    ran = skyrl("doctor")
    assert ran.status == 0  # other environments can run
    assert "missing" in ran.out and "apt-get install bubblewrap" in ran.out
    assert skyrl("doctor", "--strict").status == 1


@pytest.mark.skipif(bubblewrap_problem() is not None, reason=bubblewrap_problem() or "")
def test_it_tells_what_sandboxes_hold_here(skyrl: Skyrl) -> None:
    said = " ".join(skyrl("doctor").out.split())
    assert "private folders are" in said
    assert "in all by control groups" in said


def test_an_engine_that_does_not_answer_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    part = check_need("docker")
    assert not part.ok
    assert "DOCKER_HOST" in part.remedy


def test_needs_are_programs_or_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_need("sh").ok
    assert missing_needs(["sh", "no-such-program"]) == [
        "no-such-program: no such program on PATH; install no-such-program"
    ]
    assert check_need("train").name == "train"
    assert {"train", "small-model", "dev"} <= set(extras())
    assert "trl" in extras()["train"]
