"""Runs `skyrl` in this process, with a registry of the test's own."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import pytest

from skyrl_gym import registration
from skyrl_gym.cli import main

COLOURS = '''
"""An environment for tests: name the colour."""
import errno
from skyrl_gym import TaskSet, TextEnv, finish, tool
from skyrl_gym.errors import EnvError


class ColourEnv(TextEnv):
    """Name the colour of a thing.

    Args:
        fault: what goes wrong in setup.
    """

    def __init__(self, *, fault: str = "", **kwargs):
        super().__init__(**kwargs)
        self.fault = fault

    def load_tasks(self, split):
        things = {"snow": "white", "coal": "black", "grass": "green"}
        return TaskSet.from_rows([{"id": name, "colour": colour} for name, colour in things.items()])

    def setup(self, task):
        match self.fault:
            case "infra":
                raise EnvError("the paint is dry")
            case "bug":
                raise ZeroDivisionError("no such\\nthing")
            case "interrupt":
                raise KeyboardInterrupt
        self.given = None
        return f"What colour is {task.id}?"

    @tool
    def name_colour(self, colour: str):
        """Names it."""
        self.given = colour
        return finish()

    def grade(self):
        return float(self.given == self.task.data["colour"])
'''


@dataclass(frozen=True)
class Ran:
    """What a command line did."""

    status: int
    out: str
    err: str


@pytest.fixture
def skyrl(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")

    def run(*words: str) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(words)
        printed = capsys.readouterr()
        return Ran(int(ended.value.code or 0), printed.out, printed.err)

    return run


@pytest.fixture
def colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The path of a registry file with `colour-v0`; what is registered and imported is gone after the test."""
    monkeypatch.setattr(registration, "_ENTRIES", dict(registration._ENTRIES))
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "colours_for_test.py").write_text(COLOURS)
    path = tmp_path / "mine.yaml"
    path.write_text("colour-v0: {entry_point: 'colours_for_test:ColourEnv', summary: Names colours.}\n")
    yield str(path)
    gym.registry.pop("colour-v0", None)
    sys.modules.pop("colours_for_test", None)
