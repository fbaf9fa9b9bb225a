"""`skyrl view RUN`: what came out of a run."""

from __future__ import annotations

import os
import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from skyrl_gym.cli.runs import print_results
from skyrl_gym.evaluate import Run, Summary, open_run, summarise

EXAMPLES = """
skyrl view runs/quickstart
skyrl view runs/first runs/second    # side by side
skyrl view runs/quickstart --report
"""


def run(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    other: Annotated[Path | None, typer.Argument(metavar="OTHER", help="A second one, to read beside it.")] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Print the table, write RUN/report.html, and serve nothing.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 takes a free one.")] = 0,
    tokenizer: Annotated[
        str | None, typer.Option(help="To show tokens as text: a tokenizer.json or its folder; by default the run's.")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open a browser, where there is a screen.")] = True,
) -> None:
    """Look at a run, or at two side by side, on a page that this command serves until Ctrl-C.

    Works on a run that is going on or was stopped, too; the page follows it.
    """
    held = open_run(folder)
    console = Console(highlight=False)
    if report:
        _write_report(held, console, browser)
    else:
        _serve((held,) if other is None else (held, open_run(other)), console, port, tokenizer, browser)


def _serve(runs: tuple[Run, ...], console: Console, port: int, tokenizer: str | None, browser: bool) -> None:
    from skyrl_gym.evaluate.live import Site, ViewServer

    with ViewServer(Site(runs, tokenizer), port) as server:
        console.print(f"{' and '.join(run.name for run in runs)} at {server.url} until Ctrl-C", soft_wrap=True)
        if browser and _has_screen():
            webbrowser.open(server.url)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            console.print("stopped")


def _write_report(held: Run, console: Console, browser: bool) -> None:
    from skyrl_gym.evaluate.report import write_report

    if held.kind == "suite":
        for evaluation in held.evaluations.values():
            write_report(evaluation.path)
        print_results(console, _summaries(held), held.path / "*" / "report.html")
        return
    path = write_report(held.path)
    if steps := held.metrics():
        console.print(f"{len(steps)} steps, the last with reward {steps[-1]['reward']:.3g}")
    print_results(console, _summaries(held), path)
    if browser and _has_screen():
        webbrowser.open(path.resolve().as_uri())


def _summaries(held: Run) -> dict[str, Summary]:
    if held.kind != "eval":
        return {name: _summary(evaluation) for name, evaluation in held.evaluations.items()}
    return {held.name: _summary(held)}


def _summary(held: Run) -> Summary:
    return held.summary or summarise(held.trajectories())


def _has_screen() -> bool:
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
