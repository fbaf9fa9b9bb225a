"""Notices and hints between turns. Each is a text in `prompts/hints/`, which can be switched off."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Template

from skyrl_gym.errors import ConfigError
from skyrl_gym.messages import ToolCall

__all__ = ["HINTS", "Course", "check_hints", "hints"]

HINTS = ("turns", "tokens", "edits", "commands", "repeats")
"""turns, tokens: how much is left. edits, commands: what to do after one that failed. repeats: the same call again."""

TURNS_SHOWN = (10, 5, 3, 2, 1)
LOW_TOKENS = 4_000
REPEATS_SHOWN = 3


@dataclass
class Course:
    """How an episode has gone, as far as hints go by it.

    `failed` names the hint of what failed in this turn, and `path` the file of it.
    """

    calls: tuple[tuple[str, str], ...] = ()
    times: int = 0
    failed: str = ""
    path: str = ""

    def count(self, calls: tuple[ToolCall, ...]) -> None:
        """A turn has made these calls."""
        made = tuple((call.name, call.arguments_json()) for call in calls)
        self.times = self.times + 1 if made == self.calls else 1
        self.calls = made

    def forget(self) -> None:
        """The turn is over, and so is what failed in it."""
        self.failed = self.path = ""


def check_hints(names: Collection[str]) -> tuple[str, ...]:
    """The names, if all are known.

    Raises:
        ConfigError: one isn't.
    """
    if isinstance(names, str) or set(names) - set(HINTS):
        raise ConfigError(f"hints are a list with some of {', '.join(HINTS)}; got {names!r}")
    return tuple(name for name in HINTS if name in names)


def hints(wanted: Collection[str], course: Course, turns_left: int, tokens_left: int | None) -> str:
    """The texts that are due after a turn, a line each."""
    return "\n".join(_due(wanted, course, turns_left, tokens_left))


def _due(wanted: Collection[str], course: Course, turns_left: int, tokens_left: int | None) -> Iterator[str]:
    of_edits = course.failed in ("edits", "syntax")
    if course.failed and ("edits" if of_edits else "commands") in wanted:
        yield _text(course.failed).substitute(path=course.path)
    if "repeats" in wanted and course.calls and course.times >= REPEATS_SHOWN:
        yield _text("repeats").substitute(times=course.times)
    if "tokens" in wanted and tokens_left is not None and tokens_left < LOW_TOKENS:
        yield _text("tokens").substitute(left=max(tokens_left, 0))
    if "turns" in wanted and turns_left in TURNS_SHOWN:
        yield _text("last_turn" if turns_left == 1 else "turns").substitute(left=turns_left)


@cache
def _text(name: str) -> Template:
    return Template((files("skyrl_gym.envs.swe") / "prompts" / "hints" / f"{name}.md").read_text().strip())
