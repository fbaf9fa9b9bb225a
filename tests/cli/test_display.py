"""Progress as bars and as lines."""

import io
import re

import pytest
from rich.console import Console

from skyrl_gym.cli.display import PlainLines, describe, progress_display
from skyrl_gym.progress import Progress


@pytest.fixture
def log() -> Console:
    return Console(file=io.StringIO(), width=100)


def lines(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_log_gets_a_line_at_each_start_and_end_and_every_ten_seconds_between(log: Console) -> None:
    now = 100.0
    show = PlainLines(log, clock=lambda: now)
    for second in range(26):
        now = 100.0 + second
        show(Progress("train", second, 25, reward=second / 100))
    show(Progress("after", 0, 0, message="loading"))
    assert lines(log) == [
        "train 0/25, reward 0",
        "train 10/25, about 15 s left, reward 0.1",
        "train 20/25, about 5 s left, reward 0.2",
        "train 25/25, reward 0.25",
        "after 0, loading",
    ]


def test_a_stage_that_has_ended_says_so_once(log: Console) -> None:
    show = PlainLines(log, clock=lambda: 0.0)
    for done in (1, 2, 2, 2):
        show(Progress("evaluate", done, 2))
    assert lines(log) == ["evaluate 1/2", "evaluate 2/2"]


def test_a_long_wait_is_told_in_minutes(log: Console) -> None:
    now = 0.0
    show = PlainLines(log, clock=lambda: now)
    show(Progress("train", 0, 100))
    now = 60.0
    show(Progress("train", 10, 100))
    assert lines(log)[-1] == "train 10/100, about 9 min 0 s left"


def test_a_stage_that_begins_in_the_middle_is_timed_from_there(log: Console) -> None:
    now = 0.0
    show = PlainLines(log, clock=lambda: now)
    show(Progress("evaluate", 80, 100))
    now = 20.0
    show(Progress("evaluate", 90, 100))
    assert lines(log) == ["evaluate 80/100", "evaluate 90/100, about 20 s left"]


def test_without_a_terminal_the_display_writes_lines(log: Console) -> None:
    with progress_display(log) as show:
        show(Progress("rollout", 0, 2))
    assert lines(log) == ["rollout 0/2"]


def test_at_a_terminal_every_stage_keeps_its_bar() -> None:
    terminal = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    with progress_display(terminal) as show:
        show(Progress("rollout", 1, 2, reward=0.5))
        show(Progress("train", 3, 4, detail={"loss": 0.25}))
        show(Progress("save", 0, 0))
    text = "\n".join(lines(terminal))
    assert re.search(r"rollout .* 2/2 .*reward 0.5", text)
    assert re.search(r"train .* 4/4 .*loss 0.25", text)


def test_the_numbers_are_in_order() -> None:
    progress = Progress("train", 1, 2, reward=0.123456, message="eval next", detail={"loss": 2e-5, "tok/s": 1532.4})
    assert describe(progress, 61.0) == "about 1 min 1 s left, reward 0.123, loss 2e-05, tok/s 1,532, eval next"
