"""Results as rows of text, and as a table for the terminal: a line a number, a column an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import stdev
from typing import TYPE_CHECKING

from skyrl_gym.evaluate.estimates import Estimate
from skyrl_gym.evaluate.metrics import Summary, difference

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Row", "are_comparable", "format_change", "format_estimate", "result_rows", "summary_table"]


@dataclass(frozen=True, slots=True)
class Row:
    """One number: its name, a cell for each evaluation, and the change from the first of two to the second."""

    name: str
    cells: tuple[str, ...]
    change: str = ""


def summary_table(columns: Mapping[str, Summary]) -> Table:
    """Mean reward and pass@k with their intervals, and what was judged and excluded.

    Two evaluations of the same environment get a third column, the change from the first to the second.
    """
    from rich.table import Table
    from rich.text import Text

    summaries = list(columns.values())
    compared = are_comparable(summaries)
    table = Table(
        caption="95 % intervals, clustered by task; excluded trajectories are in no mean", caption_justify="left"
    )
    for label in ("", *columns, *(["change"] if compared else [])):
        table.add_column(Text(label), overflow="fold")
    origin = (Row("environment", tuple(s.env_id for s in summaries)), Row("policy", tuple(s.policy for s in summaries)))
    for row in (*origin, *result_rows(summaries)):
        table.add_row(*map(Text, (row.name, *row.cells)), *([row.change] if compared else []))
    return table


def are_comparable(summaries: Sequence[Summary]) -> bool:
    """Whether a change from the first to the second means something."""
    return len(summaries) == 2 and summaries[0].env_id == summaries[1].env_id


def result_rows(summaries: Sequence[Summary]) -> Iterator[Row]:
    """The results of some evaluations, the most telling first."""

    def row(name: str, cell: Callable[[Summary], str], change: str = "") -> Row:
        return Row(name, tuple(map(cell, summaries)), change)

    yield row("mean reward", lambda s: format_estimate(s.reward), _change(summaries))
    for k in sorted({k for summary in summaries for k in summary.pass_at}):
        yield row(f"pass@{k}", partial(_pass, k=k), _change(summaries, k))
    # pass^1 is pass@1
    for k in sorted({k for summary in summaries for k in summary.pass_all if k > 1}):
        yield row(f"pass^{k}", partial(_pass, k=k, every=True), _change(summaries, k, every=True))
    for name in sorted({name for summary in summaries for name in summary.metrics}):
        yield row(name, partial(_metric, name=name))
    if any(summary.by_seed for summary in summaries):
        yield row("reward by seed", _by_seed)
    yield row("tasks", lambda s: f"{s.tasks:,}")
    yield row("judged/total", lambda s: f"{s.judged:,}/{s.wanted:,}")
    yield row("excluded", _excluded)
    yield row("turns", lambda s: f"{s.turns:.1f} a trajectory")
    if any(summary.spending for summary in summaries):
        yield row("tokens", _tokens)
    if any(summary.spending and summary.spending.cost is not None for summary in summaries):
        yield row("cost", _cost)


def format_estimate(estimate: Estimate) -> str:
    """0.412 [0.350, 0.474]; a dash where there is nothing to say."""
    return "-" if estimate.value is None else f"{estimate.value:.3f}{_interval(estimate, '.3f')}"


def format_change(estimate: Estimate) -> str:
    """+0.120 [+0.031, +0.209]."""
    return "-" if estimate.value is None else f"{estimate.value:+.3f}{_interval(estimate, '+.3f')}"


def _interval(estimate: Estimate, form: str) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f" [{estimate.low:{form}}, {estimate.high:{form}}]"


def _change(summaries: Sequence[Summary], k: int | None = None, *, every: bool = False) -> str:
    if not are_comparable(summaries):
        return ""
    before, after = summaries
    return format_change(difference(before, after, k, every=every))


def _pass(summary: Summary, k: int, *, every: bool = False) -> str:
    """The estimate, and how many tasks it is over where that isn't all of them."""
    estimate = (summary.pass_all if every else summary.pass_at).get(k)
    if estimate is None:
        return "-"
    missing = f" ({estimate.tasks} of {summary.tasks} tasks)" if estimate.tasks < summary.tasks else ""
    return format_estimate(estimate) + missing


def _metric(summary: Summary, name: str) -> str:
    return f"{summary.metrics[name]:.4g}" if name in summary.metrics else "-"


def _excluded(summary: Summary) -> str:
    missing = [f"{summary.not_run:,} not run"] if summary.not_run else []
    return ", ".join([*(f"{count:,} {reason}" for reason, count in summary.excluded_by.items()), *missing]) or "none"


def _by_seed(summary: Summary) -> str:
    """0.310 0.330 0.290 (sd 0.020), in the order of the seeds."""
    rewards = list(summary.by_seed.values())
    spread = f" (sd {stdev(rewards):.3f})" if len(rewards) > 1 else ""
    return " ".join(f"{reward:.3f}" for reward in rewards) + spread if rewards else "-"


def _tokens(summary: Summary) -> str:
    found = summary.spending
    if found is None:
        return "-"
    uncounted = f" ({found.uncounted:,} completions uncounted)" if found.uncounted else ""
    return f"{found.prompt_tokens:,} in, {found.sampled_tokens:,} out{uncounted}"


def _cost(summary: Summary) -> str:
    return "-" if summary.spending is None or summary.spending.cost is None else f"{summary.spending.cost:,.4g}"
