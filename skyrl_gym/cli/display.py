"""Progress on stderr: a live bar for each stage at a terminal, plain lines in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from skyrl_gym.progress import OnProgress, Progress

__all__ = ["PlainLines", "progress_display"]

LINE_EVERY_S = 10.0


@contextmanager
def progress_display(console: Console | None = None) -> Iterator[OnProgress]:
    """Shows each `Progress` it is given until the block ends."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield PlainLines(console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
        TextColumn("{task.fields[numbers]}"),
    )
    with Bars(*columns, console=console, refresh_per_second=4) as bars:
        yield _LiveBars(bars)


class _LiveBars:
    """One bar a stage, kept when the next begins."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, progress: Progress) -> None:
        if progress.stage not in self._tasks:
            self._tasks[progress.stage] = self._bars.add_task(progress.stage, total=None, numbers="")
        self._bars.update(
            self._tasks[progress.stage],
            completed=progress.done,
            total=progress.total or None,
            numbers=numbers_of(progress),
        )


class PlainLines:
    """One line when a stage begins, when it ends, and every ten seconds between."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._stage = ""
        self._began = self._last = 0.0

    def __call__(self, progress: Progress) -> None:
        """Prints the line if one is due."""
        now = self._clock()
        first = progress.stage != self._stage
        if first:
            self._stage, self._began = progress.stage, now
        if first or now - self._last >= LINE_EVERY_S or progress.done == progress.total > 0:
            self._last = now
            self._console.print(self._line(progress, now - self._began), soft_wrap=True, markup=False, highlight=False)

    def _line(self, progress: Progress, elapsed_s: float) -> str:
        count = f"{progress.done}/{progress.total}" if progress.total else str(progress.done)
        parts = [f"{progress.stage} {count}"]
        if 0 < progress.done < progress.total:
            parts.append(f"about {_duration(elapsed_s / progress.done * (progress.total - progress.done))} left")
        return ", ".join([*parts, *filter(None, [numbers_of(progress)])])


def numbers_of(progress: Progress) -> str:
    """The reward, the details and the message, in that order."""
    named = {} if progress.reward is None else {"reward": progress.reward}
    numbers = [f"{name} {value:.3g}" for name, value in (named | dict(progress.detail)).items()]
    return ", ".join([*numbers, *filter(None, [progress.message])])


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
