"""`skyrl plan RECIPE`: whether it fits, before anything is spent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from skyrl_gym.cli.needs import require_extra
from skyrl_gym.cli.settings import parse_settings
from skyrl_gym.errors import ConfigError
from skyrl_gym.trainer.recipe import load_recipe

EXAMPLES = """
skyrl plan recipes/sa_swe_32b.yaml
skyrl plan recipes/single_gpu_24gb.yaml --set rollout.max_context=16384
"""


def run(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A YAML file; docs/training.md lists its keys.")],
    model: Annotated[str | None, typer.Option(help="A folder or hub id, in place of the recipe's.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A key of the recipe, like hardware.gpus=16."),
    ] = None,
) -> None:
    """Print the memory and layout that a recipe needs, and refuse what can't fit.

    Reads the model's configuration, not its weights.
    """
    loaded = load_recipe(recipe, parse_settings(settings) | ({} if model is None else {"model": model}))
    require_extra("train")
    from skyrl_gym.trainer.planner import GB, USABLE, make_plan

    plan = make_plan(loaded)
    console = Console()
    console.print(f"{loaded.model}: {plan.parameters / 1e9:.2f} billion parameters, {plan.trained / 1e9:.3f} trained")
    console.print(f"a step: {plan.trajectories} trajectories of {loaded.train.prompts_per_step} tasks")
    for line in plan.layout:
        console.print(line, markup=False, highlight=False)
    for device in plan.devices:
        table = Table("GB", device.device)
        for name, size in device.parts.items():
            table.add_row(f"{size / GB:.1f}", name)
        table.add_section()
        table.add_row(f"{device.total / GB:.1f}", f"of {device.available * USABLE / GB:.1f} usable")
        console.print(table)
    if plan.faults:
        raise ConfigError(f"{recipe} can't run as planned: {'; '.join(plan.faults)}")
