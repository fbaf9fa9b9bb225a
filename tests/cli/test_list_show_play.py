"""The verbs that look at one environment."""

import io
from collections.abc import Callable
from typing import Any

import pytest

Skyrl = Callable[..., Any]


def test_list_names_built_in_and_own_environments(skyrl: Skyrl, colours: str) -> None:
    ran = skyrl("list", "--registry", colours)
    assert ran.status == 0
    assert all(text in ran.out for text in ("skyrl/memory-v0", "skyrl/swe-v0", "bubblewrap", "Names colours."))


def test_an_environment_variable_names_registry_files_too(
    skyrl: Skyrl, colours: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYRL_REGISTRY", colours)
    assert "colour-v0" in skyrl("list").out


def test_show_prints_tools_settings_and_the_first_messages(skyrl: Skyrl, colours: str) -> None:
    ran = skyrl("show", "colour-v0", "--registry", colours)
    assert ran.status == 0
    for text in (
        "name_colour(colour: string)",
        "Names it.",
        "train (3), test (3)",
        "what goes wrong in setup.",
        "max_turns",
        "What colour is",
    ):
        assert text in ran.out


def test_show_says_why_there_is_no_first_observation(skyrl: Skyrl, colours: str) -> None:
    ran = skyrl("show", "colour-v0", "--registry", colours, "--set", "fault=infra")
    assert ran.status == 0
    assert "Not shown: the paint is dry" in ran.out


def test_a_bug_in_an_environment_is_called_one(skyrl: Skyrl, colours: str) -> None:
    ran = skyrl("show", "colour-v0", "--registry", colours, "--set", "fault=bug")
    assert (ran.status, ran.err.count("\n")) == (1, 1)
    assert "a bug: ZeroDivisionError: no such thing" in ran.err


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("name_colour white\n", "Reward 1 after 1 turn (done)"),
        ("name_colour colour=red\n", "Reward 0 after 1 turn (done)"),
        (":tools\nno_tool\n:quit\n", "Not graded: the player left"),
        ("", "Not graded: the player left"),
    ],
)
def test_play_ends_with_the_reward(
    skyrl: Skyrl, colours: str, monkeypatch: pytest.MonkeyPatch, typed: str, said: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    ran = skyrl("play", "colour-v0", "--registry", colours, "--task", "snow")
    assert ran.status == 0
    assert "What colour is snow?" in ran.out
    assert said in ran.out


def test_play_takes_a_task_by_number_or_draws_one_by_seed(
    skyrl: Skyrl, colours: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert "coal?" in skyrl("play", "colour-v0", "--registry", colours, "--task", "1").out
    drawn = {skyrl("play", "colour-v0", "--registry", colours, "--seed", str(seed)).out for seed in range(6)}
    again = {skyrl("play", "colour-v0", "--registry", colours, "--seed", str(seed)).out for seed in range(6)}
    assert drawn == again and len(drawn) > 1


def test_play_on_a_broken_environment_ends_with_why(
    skyrl: Skyrl, colours: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    ran = skyrl("play", "colour-v0", "--registry", colours, "--set", "fault=infra")
    assert "Not graded: the paint is dry" in ran.out
    ran = skyrl("play", "colour-v0", "--registry", colours, "--set", "fault=bug")
    assert ran.status == 1 and "ZeroDivisionError" in ran.err
