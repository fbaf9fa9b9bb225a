"""`skyrl validate ENV`: whether its tasks and its grader can be trusted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from skyrl_gym.cli.display import progress_display
from skyrl_gym.cli.settings import SetOption, parse_settings
from skyrl_gym.evaluate.concurrency import auto_concurrency
from skyrl_gym.evaluate.validation import ProbeResult, probe_counts, validate
from skyrl_gym.probes import GOLD
from skyrl_gym.progress import OnProgress, Progress
from skyrl_gym.registration import make_env
from skyrl_gym.tasks import TaskSet

EXAMPLES = """
skyrl validate skyrl/memory-v0 --tasks 50
skyrl validate skyrl/swe-v0 --set tasks=mine.jsonl --json > validation.json
"""
SHOWN = 20


def run(
    env: Annotated[str, typer.Argument(metavar="ENV", help="An id of `skyrl list`.")],
    split: Annotated[str, typer.Option(help="Which tasks.")] = "test",
    tasks: Annotated[int | None, typer.Option(min=1, help="Only the first N tasks.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Tasks at once; by default what fits here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every result as JSON.")] = False,
    settings: SetOption = None,
) -> None:
    """Check that gold solves each task, and that doing nothing and cheating don't.

    An environment declares its probes in `probes()`. Exits with 1 if one of them earns what it must not.
    """
    kwargs = {"split": split, **parse_settings(settings)}
    chosen = make_env(env, **kwargs).tasks
    chosen = chosen if tasks is None else chosen.take(tasks)
    with progress_display() as show:
        at_once = concurrency or auto_concurrency(env, waits=False)
        results = asyncio.run(_validate(env, chosen, kwargs, at_once, show))
    if as_json:
        typer.echo(json.dumps(_to_json(env, kwargs, results), indent=2))
    else:
        _print(results)
    if not all(result.passed for result in results):
        raise typer.Exit(1)


async def _validate(
    env_id: str, tasks: TaskSet, kwargs: dict[str, Any], at_once: int, show: OnProgress
) -> list[ProbeResult]:
    results: list[ProbeResult] = []
    done = failed = 0
    async with aclosing(validate(env_id, tasks, env_kwargs=kwargs, concurrency=at_once)) as found:
        async for of_task in found:
            results += of_task
            done, failed = done + 1, failed + (not all(result.passed for result in of_task))
            show(Progress("validate", done, len(tasks), detail={"failed": failed} if failed else {}))
    return results


def _to_json(env_id: str, kwargs: dict[str, Any], results: Sequence[ProbeResult]) -> dict[str, Any]:
    counts = {name: {"passed": passed, "tasks": total} for name, (passed, total) in probe_counts(results).items()}
    return {
        "env_id": env_id,
        "env_kwargs": kwargs,
        "passed": all(result.passed for result in results),
        "probes": counts,
        "results": [result.to_json() for result in results],
    }


def _print(results: Sequence[ProbeResult]) -> None:
    console = Console(highlight=False)
    expected: dict[str, dict[str, None]] = {}
    for result in results:
        expected.setdefault(result.probe, {})[result.expected] = None
    table = Table("probe", "expected", "passed", "", box=None, pad_edge=False, header_style="bold")
    counts = probe_counts(results)
    for name, (passed, total) in counts.items():
        mark = "[green]ok[/]" if passed == total else "[red]failed[/]"
        table.add_row(
            escape(name or "(not declared)"), " or ".join(expected[name]), f"{passed:,}/{total:,} tasks", mark
        )
    console.print(table)
    if GOLD not in counts:
        console.print("No gold solution is declared: nothing shows that a task can be solved.", style="yellow")
    failures = [result for result in results if not result.passed]
    for result in failures[:SHOWN]:
        problem = " ".join(result.problem.split())
        console.print(f"{result.task_id}: {result.probe or 'probes'}: {problem}", markup=False, soft_wrap=True)
    if len(failures) > SHOWN:
        console.print(f"... and {len(failures) - SHOWN:,} more; --json prints them all", markup=False)
