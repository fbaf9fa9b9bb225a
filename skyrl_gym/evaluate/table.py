"""Summaries as a table for the terminal: a line a number, a column an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from skyrl_gym.evaluate.estimates import Estimate
from skyrl_gym.evaluate.metrics import Summary, difference

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["format_change", "format_estimate", "format_pass", "summary_table"]


def summary_table(columns: Mapping[str, Summary]) -> Table:
    """Mean reward and pass@k with their intervals, and what was judged and excluded.

    Two evaluations of the same environment get a third column, the change from the first to the second.
    """
    from rich.table import Table
    from rich.text import Text

    summaries = list(columns.values())
    compared = len(summaries) == 2 and summaries[0].env_id == summaries[1].env_id
    table = Table(
        caption="95 % intervals, clustered by task; excluded trajectories are in no mean", caption_justify="left"
    )
    table.add_column("")
    for label in (*columns, *(["change"] if compared else [])):
        table.add_column(Text(label), overflow="fold")
    for name, cells, change in _lines(summaries, compared):
        table.add_row(name, *map(Text, cells), *([change] if compared else []))
    return table


def _lines(summaries: list[Summary], compared: bool) -> Iterable[tuple[str, list[str], str]]:
    """Name, cell for each summary, and change of each line."""
    first, last = summaries[0], summaries[-1]

    def line(name: str, cell: Callable[[Summary], str], change: str = "") -> tuple[str, list[str], str]:
        return name, [cell(summary) for summary in summaries], change

    yield line("environment", lambda s: s.env_id)
    yield line("policy", lambda s: s.policy)
    yield line("tasks", lambda s: str(s.tasks))
    yield line(
        "mean reward", lambda s: format_estimate(s.reward), format_change(difference(first, last)) if compared else ""
    )
    for k in sorted({k for summary in summaries for k in summary.pass_at}):
        changed = format_change(difference(first, last, k)) if compared else ""
        yield line(f"pass@{k}", partial(format_pass, k=k), changed)
    yield line("judged/total", lambda s: f"{s.judged}/{s.total}")
    yield line("excluded", _excluded)
    yield line("turns", lambda s: f"{s.turns:.1f} a trajectory")


def format_estimate(estimate: Estimate | None) -> str:
    """0.412 [0.350, 0.474]; a dash where there is nothing to say."""
    if estimate is None or estimate.value is None:
        return "-"
    return f"{estimate.value:.3f}{_interval(estimate, '.3f')}"


def format_pass(summary: Summary, k: int) -> str:
    """As `format_estimate`, and how many tasks it is over where that isn't all of them."""
    estimate = summary.pass_at.get(k)
    if estimate is None:
        return "-"
    missing = f" ({estimate.tasks} of {summary.tasks} tasks)" if estimate.tasks < summary.tasks else ""
    return format_estimate(estimate) + missing


def format_change(estimate: Estimate) -> str:
    """+0.120 [+0.031, +0.209]."""
    return "-" if estimate.value is None else f"{estimate.value:+.3f}{_interval(estimate, '+.3f')}"


def _interval(estimate: Estimate, form: str) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f" [{estimate.low:{form}}, {estimate.high:{form}}]"


def _excluded(summary: Summary) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in summary.excluded_by.items()) or "none"
