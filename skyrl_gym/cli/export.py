"""`skyrl export RUN`: a run's trajectories for another trainer or data tool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from skyrl_gym.evaluate import open_run
from skyrl_gym.export import FORMATS, Exported, export_run

EXAMPLES = """
skyrl export runs/memory --to sft --min-reward 1
skyrl export runs/quickstart --to verl --out batch.npz
skyrl export runs/quickstart/eval/after --to hf
"""


def run(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    to: Annotated[str, typer.Option(help=f"One of {', '.join(FORMATS)}; docs/export.md describes them.")],
    out: Annotated[Path | None, typer.Option(help="The file; by default in RUN/export.")] = None,
    min_reward: Annotated[float | None, typer.Option(help="Leave out what was rewarded less.")] = None,
    pad_id: Annotated[int, typer.Option(min=0, help="What the tensors for VeRL are padded with.")] = 0,
) -> None:
    """Write the judged trajectories of a run in the form that another tool reads.

    What was not judged is left out and counted.
    """
    done = export_run(open_run(folder), to, out, min_reward=min_reward, pad_id=pad_id)
    console = Console(highlight=False)
    for line in _report(done):
        console.print(line, markup=False, soft_wrap=True)


def _report(done: Exported) -> list[str]:
    excluded = ", ".join(f"{count:,} {ending}" for ending, count in done.excluded.items())
    lines = {
        f"excluded: {excluded}": bool(excluded),
        f"left out for their reward: {done.below:,}": done.below > 0,
        f"without token ids: {done.without_tokens:,}": done.without_tokens > 0,
        f"sequences without log-probabilities: {done.without_logprobs:,}": done.without_logprobs > 0,
    }
    return [f"{done.trajectories:,} trajectories: {done.path}", *(line for line, holds in lines.items() if holds)]
