"""`skyrl score RUN`: grade the trajectories of a run anew, without the model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from skyrl_gym.cli.boundary import keeping
from skyrl_gym.cli.display import progress_display
from skyrl_gym.cli.runs import ensure_judged, new_folder, print_results
from skyrl_gym.cli.settings import SetOption, parse_settings
from skyrl_gym.evaluate import open_run, summarise
from skyrl_gym.evaluate.concurrency import auto_concurrency
from skyrl_gym.evaluate.metrics import default_ks
from skyrl_gym.evaluate.rescoring import rescore

EXAMPLES = """
skyrl score runs/memory
skyrl score runs/memory --out runs/memory-lenient --set memory_words=200
"""


def run(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder of an evaluation.")],
    out: Annotated[Path | None, typer.Option(help="The new run folder; by default runs/score-NAME-TIME.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Episodes at once; by default what fits here.")] = None,
    settings: SetOption = None,
) -> None:
    """Re-execute a run's recorded actions and grade them, into a new run folder.

    For a grader that was mended, or was down. The metric replay_diverged is the share of trajectories whose
    actions were answered otherwise than recorded; `skyrl replay` shows where.
    """
    held = open_run(folder)
    target = out or new_folder(Path("runs"), "score", held.name)
    at_once = concurrency or auto_concurrency(str(held.config.get("env_id")), waits=False)
    with keeping(target), progress_display() as show:
        work = rescore(held, target, env_kwargs=parse_settings(settings), concurrency=at_once, on_progress=show)
        after = asyncio.run(work)
    from skyrl_gym.evaluate.report import write_report

    before = summarise(held.trajectories(), default_ks(held.tries))
    print_results(Console(), {"recorded": before, "graded anew": after}, write_report(target))
    ensure_judged(after)
