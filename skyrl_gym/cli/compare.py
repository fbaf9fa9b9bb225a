"""`skyrl compare A B`: whether the second run is better than the first, or it is chance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from skyrl_gym.errors import ConfigError
from skyrl_gym.evaluate import Run, open_run, summary_table
from skyrl_gym.evaluate.compare import Comparison, TaskPair, compare
from skyrl_gym.evaluate.table import format_change

EXAMPLES = """
skyrl compare runs/base runs/trained
skyrl compare runs/quickstart/eval/before runs/quickstart/eval/after --json
"""
SHOWN = 20
SURE = 0.05


def run(
    before: Annotated[Path, typer.Argument(metavar="A", help="The run folder of an evaluation.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="Another one, of the same tasks.")],
    common: Annotated[
        bool, typer.Option("--common", help="Compare what both have, where tasks or settings differ.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Compare two evaluations of the same tasks, task by task.

    Prints the change with its 95 % interval, the tasks gained and lost, and whether chance explains it.
    """
    pairs = _pairs(open_run(before), open_run(after))
    found = {name: compare(*pair, common=common) for name, pair in pairs.items()}
    if as_json:
        results = {name: comparison.to_json() for name, comparison in found.items()}
        typer.echo(json.dumps(results.get("", results), indent=2))
        return
    console = Console(highlight=False)
    for name, comparison in found.items():
        if name:
            console.print(f"\n{name}", style="bold", markup=False)
        _print(comparison, (str(before), str(after)), console)


def _pairs(before: Run, after: Run) -> dict[str, tuple[Run, Run]]:
    """The evaluations that belong together: the two runs, or the entries of two suites by name.

    Raises:
        ConfigError: only one is a suite, or they have no entry in common.
    """
    if "suite" not in (before.kind, after.kind):
        return {"": (before, after)}
    first, second = before.evaluations, after.evaluations
    pairs = {name: (first[name], second[name]) for name in first if name in second}
    if before.kind != after.kind or not pairs:
        raise ConfigError(f"{before.path} and {after.path} have no entry in common: compare two suites, or two runs")
    return pairs


def _print(found: Comparison, names: tuple[str, str], console: Console) -> None:
    console.print(summary_table(dict(zip(names, (found.before, found.after), strict=True))))
    for line in (*_findings(found), *_flips("gained", found.gained), *_flips("lost", found.lost)):
        console.print(line, markup=False, soft_wrap=True)


def _findings(found: Comparison) -> list[str]:
    out = f"{found.left_out:,} more without a judged trajectory in one of them" if found.left_out else ""
    change, p = format_change(found.change), f"p = {found.p_reward:.2g}"
    lines = [
        f"{len(found.pairs):,} tasks compared{', ' * bool(out)}{out}.",
        f"Mean reward {change}, {p} (permutation over tasks): {_verdict(found)}",
        f"Tasks gained {len(found.gained):,}, lost {len(found.lost):,}, p = {found.p_solved:.2g} (McNemar, exact).",
    ]
    if found.detectable is not None:
        lines.append(
            f"A true change of {found.detectable:.2g} would be seen in 4 of 5 such comparisons, less in fewer."
        )
    return lines


def _verdict(found: Comparison) -> str:
    if found.p_reward >= SURE or not found.change.value:
        return "no difference is shown."
    return f"the {'second' if found.change.value > 0 else 'first'} is better."


def _flips(name: str, pairs: Sequence[TaskPair]) -> list[str]:
    shown = [
        f"  {name} {pair.after.task_id or pair.before.task_id}: {pair.before.passed}/{pair.before.judged} passed,"
        f" then {pair.after.passed}/{pair.after.judged}"
        for pair in pairs[:SHOWN]
    ]
    more = len(pairs) - len(shown)
    return [*shown, *([f"  ... and {more:,} more {name}; --json lists them"] if more else [])]
