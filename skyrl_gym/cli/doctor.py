"""`skyrl doctor`: what is here, what is missing, how to get it."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from skyrl_gym.cli.needs import Part, check_extra, check_need, check_small_model
from skyrl_gym.registration import RegistryEntry, registered

EXAMPLES = """
skyrl doctor
skyrl doctor --strict   # fails where anything is missing
"""


def run(
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if anything is missing.")] = False,
) -> None:
    """What is installed, what each environment needs, and how to get it.

    Exits with 1 if no environment can run.
    """
    console = Console(highlight=False)
    entries = registered()
    needs = {need: check_need(need) for need in dict.fromkeys(need for entry in entries for need in entry.needs)}
    parts = [_machine(), _gpu(), check_extra("train"), check_small_model(), *needs.values()]
    suites = [_suite(entry, needs) for entry in entries]
    console.print(_parts(parts))
    console.print()
    console.print(_suites(suites))
    if not any(suite.ok for suite in suites) or (strict and not all(part.ok for part in (*parts, *suites))):
        raise typer.Exit(1)


def _parts(parts: list[Part]) -> Table:
    table = Table("part", "", box=None, pad_edge=False, header_style="bold")
    for title in ("found", "to get it"):
        table.add_column(title, overflow="fold")
    for part in parts:
        table.add_row(part.name, _mark(part), escape(part.found), "" if part.ok else escape(part.remedy))
    return table


def _suites(suites: list[Part]) -> Table:
    table = Table("environment", "", "needs", box=None, pad_edge=False, header_style="bold")
    for suite in suites:
        table.add_row(suite.name, _mark(suite), escape(suite.found))
    return table


def _mark(part: Part) -> str:
    return "[green]ok[/]" if part.ok else "[yellow]missing[/]"


def _machine() -> Part:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return Part("machine", True, f"Python {platform.python_version()}, {cores} cores, {memory:.0f} GiB of memory")


def _gpu() -> Part:
    try:
        import torch
    except ImportError:
        return Part("GPU", True, "not looked for: PyTorch is not installed")
    if not torch.cuda.is_available():
        return Part("GPU", True, f"none that PyTorch {torch.__version__} can use: models run on the CPU")
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return Part("GPU", True, f"{', '.join(names)} (PyTorch {torch.__version__})")


def _suite(entry: RegistryEntry, needs: Mapping[str, Part]) -> Part:
    missing = [need for need in entry.needs if not needs[need].ok]
    return Part(entry.id, not missing, ", ".join(missing or entry.needs) or "nothing more")
