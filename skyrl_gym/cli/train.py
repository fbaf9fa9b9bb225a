"""`skyrl train RECIPE`: a better model."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from skyrl_gym.cli.boundary import keeping
from skyrl_gym.cli.display import progress_display
from skyrl_gym.cli.needs import require_extra
from skyrl_gym.cli.runs import new_folder, print_results
from skyrl_gym.cli.settings import parse_settings
from skyrl_gym.errors import ConfigError
from skyrl_gym.progress import OnProgress, Progress
from skyrl_gym.trainer.recipe import load_recipe

EXAMPLES = """
skyrl train recipes/quickstart.yaml
skyrl train recipes/quickstart.yaml --model my/model --set train.max_steps=40 --set train.learning_rate=2e-6
skyrl train mine.yaml --registry my/registry.yaml --name first-try
skyrl train mine.yaml --name first-try --resume
accelerate launch --config_file recipes/accelerate/ddp.yaml -m skyrl_gym train mine.yaml --name on-eight
"""


def run(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A YAML file; docs/training.md lists its keys.")],
    model: Annotated[
        str | None, typer.Option(help="A folder, a hub id or smollm2-135m, in place of the recipe's.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A key of the recipe, like train.max_steps=40."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the run folder; by default the recipe's and the time.")] = None,
    out: Annotated[Path, typer.Option(help="Where run folders are made.")] = Path("runs"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run of this name.")] = False,
) -> None:
    """Train a model as a recipe says, with an evaluation on held-out tasks before and after.

    Writes the model, trajectories, metrics and an HTML report.
    """
    first = os.environ.get("RANK", "0") == "0"
    if name is None and (resume or "RANK" in os.environ):
        raise ConfigError("--resume, and training in several processes, need the run's --name")
    overrides = parse_settings(settings) | ({} if model is None else {"model": model})
    loaded = load_recipe(recipe, overrides)
    folder = out / name if name else new_folder(out, loaded.name)
    require_extra("train")
    with keeping(folder, f"; go on with --name {folder.name} --resume"), _display(first) as show:
        show(Progress("load", 0, 1, message="loading PyTorch and TRL"))
        from skyrl_gym.trainer.run import train

        result = train(loaded, folder, show, resume=resume)
    _leave_the_others()
    if not first:
        return
    evaluations = {"before": result.before, "after": result.after}
    rows = {name: summary for name, summary in evaluations.items() if summary is not None}
    print_results(Console(), rows, folder / "report.html")


def _leave_the_others() -> None:
    """Leave the group of the launched processes: gloo's threads abort a process that ends while it is in one."""
    from torch import distributed

    if distributed.is_initialized():
        distributed.destroy_process_group()


def _display(first: bool) -> AbstractContextManager[OnProgress]:
    """Progress of the first process; the others say nothing."""
    return progress_display() if first else nullcontext(lambda progress: None)
