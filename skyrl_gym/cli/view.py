"""`skyrl view RUN`: what came out of a run."""

from __future__ import annotations

import os
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from skyrl_gym.cli.runs import print_results
from skyrl_gym.evaluate import Run, Summary, open_run, summarise

EXAMPLES = """
skyrl view runs/quickstart
skyrl view runs/quickstart --no-browser
"""


def run(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    browser: Annotated[bool, typer.Option(help="Open the report, where there is a screen.")] = True,
) -> None:
    """Print the results of a run, bring its report up to date and open it.

    Works on a run that is going on or was stopped, too.
    """
    from skyrl_gym.evaluate.report import write_report

    held = open_run(folder)
    report = write_report(folder)
    console = Console(highlight=False)
    if steps := held.metrics():
        console.print(f"{len(steps)} steps, the last with reward {steps[-1]['reward']:.3g}")
    print_results(console, _summaries(held), report)
    if browser and _has_screen():
        webbrowser.open(report.resolve().as_uri())


def _summaries(held: Run) -> dict[str, Summary]:
    if held.kind == "train":
        return {name: _summary(evaluation) for name, evaluation in held.evaluations.items()}
    return {held.name: _summary(held)}


def _summary(held: Run) -> Summary:
    return held.summary or summarise(held.trajectories())


def _has_screen() -> bool:
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
