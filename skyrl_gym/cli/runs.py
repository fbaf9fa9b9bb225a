"""Names of run folders, and what follows a run: its table and its report."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from rich.console import Console

from skyrl_gym.errors import ConfigError, InfraError
from skyrl_gym.evaluate import Summary, summary_table

__all__ = ["ensure_judged", "new_folder", "print_results"]


def new_folder(out: Path, *parts: str) -> Path:
    """A folder below `out` named by its parts and the time, to the second.

    Raises:
        ConfigError: it exists already.
    """
    name = "-".join(re.sub(r"[^\w.]+", "-", part).strip("-") for part in parts)
    folder = out / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    if folder.exists():
        raise ConfigError(f"{folder} exists already: name another one")
    return folder


def print_results(console: Console, rows: Mapping[str, Summary], report: Path) -> None:
    """The table of some evaluations and where the report is."""
    if rows:
        console.print(summary_table(rows))
    console.print(f"Report: {report}", markup=False, highlight=False, soft_wrap=True)


def ensure_judged(summary: Summary, least: float = 0.0) -> None:
    """Refuses an evaluation that is starved: nothing was judged, or less than a share of what was wanted.

    Raises:
        InfraError: it is; the message counts how the others ended.
    """
    if not summary.starved and summary.judged >= least * summary.wanted:
        return
    ends = [f"{count:,} {reason}" for reason, count in summary.excluded_by.items()]
    others = ", ".join([*ends, *([f"{summary.not_run:,} not run"] if summary.not_run else [])])
    count = f"only {summary.judged:,} of {summary.wanted:,} trajectories" if summary.judged else "no trajectory"
    raise InfraError(f"{count} could be judged: {others}; the report shows the errors")
