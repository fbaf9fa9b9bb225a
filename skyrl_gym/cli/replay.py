"""`skyrl replay RUN`: whether a run can be repeated, and where not."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from skyrl_gym.cli.display import progress_display
from skyrl_gym.errors import ConfigError
from skyrl_gym.evaluate import Run, open_run
from skyrl_gym.evaluate.concurrency import auto_concurrency
from skyrl_gym.evaluate.divergence import Divergence, first_divergence
from skyrl_gym.evaluate.reexecution import reexecute
from skyrl_gym.evaluate.report.text import plain
from skyrl_gym.progress import OnProgress, Progress
from skyrl_gym.rollout import Trajectory

EXAMPLES = r"""
skyrl replay runs/memory
skyrl replay runs/swe --task cronline-1 --ignore '\d+\.\d+s'
"""
SHOWN = 5
SHOWN_LINES = 40


def run(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder of an evaluation.")],
    task: Annotated[str | None, typer.Option(metavar="ID", help="Only this task's trajectories.")] = None,
    ignore: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Text that may differ: times, temporary names.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Episodes at once; by default what fits here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every difference as JSON.")] = False,
) -> None:
    """Re-execute a run's recorded actions in fresh environments and report the first step that differs.

    Exits with 1 if a trajectory differs.
    """
    held, pattern = open_run(folder), _pattern(ignore)
    at_once = concurrency or auto_concurrency(str(held.config.get("env_id")), waits=False)
    with progress_display() as show:
        found = asyncio.run(_replay(held, task, pattern, at_once, show))
    if task is not None and not (found.same or found.endless or found.different):
        raise ConfigError(f"{folder} has no trajectory of a task {task!r}")
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
    else:
        _print(found)
    if found.different:
        raise typer.Exit(1)


@dataclass
class _Found:
    same: int = 0
    endless: int = 0
    different: list[tuple[Trajectory, Divergence]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        different = [
            {"task_id": trajectory.task_id, "sample": trajectory.sample, **asdict(divergence)}
            for trajectory, divergence in self.different
        ]
        return {"same": self.same, "not_replayed": self.endless, "different": different}


def _pattern(ignore: str | None) -> re.Pattern[str] | None:
    try:
        return None if ignore is None else re.compile(ignore)
    except re.error as error:
        raise ConfigError(f"--ignore takes a regular expression; got {ignore!r}: {error}") from None


async def _replay(
    held: Run, task: str | None, ignore: re.Pattern[str] | None, at_once: int, show: OnProgress
) -> _Found:
    def wanted(trajectory: Trajectory) -> bool:
        return task is None or trajectory.task_id == task

    count = sum(map(wanted, held.trajectories()))
    found = _Found()
    async with aclosing(reexecute(held, wanted=wanted, concurrency=at_once)) as reexecutions:
        async for again in reexecutions:
            if again.played is None:
                found.endless += 1
            elif (divergence := first_divergence(again.recorded, again.played, ignore=ignore)) is None:
                found.same += 1
            else:
                found.different.append((again.recorded, divergence))
            done = found.same + found.endless + len(found.different)
            show(Progress("replay", done, count, detail={"different": len(found.different)} if found.different else {}))
    return found


def _print(found: _Found) -> None:
    console = Console(highlight=False)
    endless = f", {found.endless:,} not replayed (the machinery failed before the end)" if found.endless else ""
    console.print(f"{found.same:,} the same, {len(found.different):,} different{endless}.", soft_wrap=True)
    for trajectory, divergence in found.different[:SHOWN]:
        title = f"\n{trajectory.task_id}, sample {trajectory.sample}: first difference at {divergence.step}"
        console.print(_safe(title), markup=False, style="bold", soft_wrap=True)
        for line in _clipped(divergence.diff.split("\n")):
            style = {"-": "red", "+": "green"}.get(line[:1])
            console.print(_safe(line), markup=False, style=style, soft_wrap=True)
    if len(found.different) > SHOWN:
        console.print(f"\n... and {len(found.different) - SHOWN:,} more; --json prints them all")


def _clipped(lines: list[str]) -> list[str]:
    more = len(lines) - SHOWN_LINES
    return lines if more <= 0 else [*lines[:SHOWN_LINES], f"[... {more:,} lines more]"]


def _safe(text: str) -> str:
    """Without what would move a terminal's cursor or hide text."""
    return plain(text).unescape()
