"""The table in the terminal."""

from collections.abc import Callable

import pytest
from rich.console import Console

from skyrl_gym.errors import StopReason
from skyrl_gym.evaluate import Summary, summarise, summary_table
from skyrl_gym.rollout import Trajectory

Make = Callable[..., Trajectory]


def shown(columns: dict[str, Summary], width: int = 100) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(summary_table(columns))
    return captured.get()


def line(text: str, name: str) -> list[str]:
    (found,) = [row for row in text.splitlines() if row.startswith(f"│ {name} ")]
    return [cell.strip() for cell in found.split("│")[1:-1]]


@pytest.fixture
def before(make: Make) -> Summary:
    lost = make(None, "c", stop_reason=StopReason.SANDBOX_LOST)
    return summarise([make(0.0), make(1.0, sample=1), make(0.0, "b"), make(0.0, "b", 1), lost], (1, 2))


def test_one_evaluation(before: Summary) -> None:
    text = shown({"model": before})
    assert line(text, "mean reward") == ["mean reward", "0.250 [-2.927, 3.427]"]
    assert line(text, "pass@1") == ["pass@1", "0.250 [0.000, 1.000] (2 of 3 tasks)"]
    assert line(text, "pass@2") == ["pass@2", "0.500 [0.000, 1.000] (2 of 3 tasks)"]
    assert line(text, "judged/total")[1] == "4/5"
    assert line(text, "excluded")[1] == "1 sandbox_lost"


def test_before_and_after_have_a_change(before: Summary, make: Make) -> None:
    after = summarise([make(1.0), make(1.0, sample=1), make(0.5, "b"), make(0.5, "b", 1)], (1, 2))
    text = shown({"before": before, "after": after})
    assert line(text, "mean reward")[3] == "+0.500"
    assert line(text, "pass@1")[3] == "+0.250 [-2.927, +3.427]"
    assert line(text, "excluded")[1:3] == ["1 sandbox_lost", "none"]


def test_other_environments_are_not_subtracted(before: Summary, make: Make) -> None:
    other = summarise([make(1.0, env_id="other-v0")])
    assert "change" not in shown({"one": before, "two": other})


def test_nothing_judged_shows_a_dash(make: Make) -> None:
    text = shown({"model": summarise([make(None)])})
    assert line(text, "mean reward")[1] == "-"
    assert line(text, "pass@1")[1] == "- (0 of 1 tasks)"


def test_names_are_text_not_markup(make: Make) -> None:
    text = shown({"[bold]x[/]": summarise([make(policy="[red]p", env_id="[/]e")])})
    assert "[bold]x[/]" in text and "[red]p" in text and "[/]e" in text


def test_it_fits_a_narrow_terminal(before: Summary) -> None:
    assert max(map(len, shown({"before": before, "after": before}, width=60).splitlines())) <= 60


def test_no_evaluation_yet_is_an_empty_table() -> None:
    assert "mean reward" in shown({})


def test_the_environments_own_numbers_are_shown(make: Make) -> None:
    text = shown({"model": summarise([make(1.0, metrics={"f1": 0.25}), make(0.0, sample=1, metrics={"f1": 0.5})])})
    assert line(text, "f1")[1] == "0.375"
