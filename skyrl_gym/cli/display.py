"""Progress on stderr: a live bar for each stage at a terminal, plain lines in a log."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from skyrl_gym.progress import OnProgress, Progress

__all__ = ["LiveBars", "PlainLines", "progress_display"]

LINE_EVERY_S = 10.0
Clock = Callable[[], float]


@contextmanager
def progress_display(console: Console | None = None) -> Iterator[OnProgress]:
    """Shows each `Progress` it is given until the block ends."""
    console = console or Console(stderr=True)
    with warnings.catch_warnings():
        _hush_libraries(console.is_terminal)
        if not console.is_terminal:
            yield PlainLines(console)
            return
        with Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            console=console,
            refresh_per_second=4,
        ) as bars:
            yield LiveBars(bars)


def _hush_libraries(at_terminal: bool) -> None:
    """Keeps out what no user can act on; must come before transformers is imported."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not at_terminal:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.simplefilter("ignore", FutureWarning)


@dataclass(frozen=True)
class _Pace:
    """When a stage was first heard of, and how far it was then: a resumed one begins in the middle."""

    began: float
    done: int

    def seconds_left(self, progress: Progress, now: float) -> float | None:
        """An estimate, or None while there is nothing to estimate from."""
        steps = progress.done - self.done
        if steps <= 0 or progress.done >= progress.total:
            return None
        return (now - self.began) / steps * (progress.total - progress.done)


class LiveBars:
    """One bar a stage, kept when the next begins."""

    def __init__(self, bars: Bars, clock: Clock = time.monotonic) -> None:
        self._bars = bars
        self._clock = clock
        self._stage = ""
        self._total: int | None = None
        self._task = TaskID(0)
        self._pace = _Pace(0.0, 0)

    def __call__(self, progress: Progress) -> None:
        """Moves the stage's bar."""
        if progress.stage != self._stage:
            self._begin(progress)
        self._total = progress.total or None
        text = describe(progress, self._pace.seconds_left(progress, self._clock()))
        self._bars.update(self._task, completed=progress.done, total=self._total, text=text)

    def _begin(self, progress: Progress) -> None:
        if self._stage:
            self._bars.update(self._task, total=self._total or 1, completed=self._total or 1)
            self._bars.stop_task(self._task)
        self._stage = progress.stage
        self._pace = _Pace(self._clock(), progress.done)
        self._task = self._bars.add_task(progress.stage, total=None, text="")


class PlainLines:
    """One line when a stage begins, when it ends, and every ten seconds between."""

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._stage = ""
        self._last = 0.0
        self._ended = False
        self._pace = _Pace(0.0, 0)

    def __call__(self, progress: Progress) -> None:
        """Prints the line if one is due."""
        now = self._clock()
        first = progress.stage != self._stage
        if first:
            self._stage, self._pace, self._ended = progress.stage, _Pace(now, progress.done), False
        ends = progress.done == progress.total > 0 and not self._ended
        if first or ends or now - self._last >= LINE_EVERY_S:
            self._last, self._ended = now, self._ended or ends
            self._print(progress, describe(progress, self._pace.seconds_left(progress, now)))

    def _print(self, progress: Progress, text: str) -> None:
        count = f"{progress.done}/{progress.total}" if progress.total else str(progress.done)
        line = f"{progress.stage} {count}{', ' if text else ''}{text}"
        self._console.print(line, soft_wrap=True, markup=False, highlight=False)


def describe(progress: Progress, seconds_left: float | None = None) -> str:
    """The time left, the reward, the details and the message, those that there are."""
    left = "" if seconds_left is None else f"about {_duration(seconds_left)} left"
    named = {} if progress.reward is None else {"reward": progress.reward}
    numbers = [f"{name} {_number(value)}" for name, value in (named | dict(progress.detail)).items()]
    return ", ".join(filter(None, [left, *numbers, progress.message]))


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
