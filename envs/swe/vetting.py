"""Whether a made task is sound: repeated runs with and without its repair agree, and some tests tell the two apart."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skyrl_gym.envs.swe.grading import run_tests
from skyrl_gym.envs.swe.instance import read_instance
from skyrl_gym.envs.swe.report import TestReport
from skyrl_gym.envs.swe.solve import gold_changes
from skyrl_gym.envs.swe.statements import source_of, statement
from skyrl_gym.tasks import Task

__all__ = ["REPEATS", "Vetted", "uses_up_memory", "vet"]

REPEATS = 3
MAX_NAMED = 3
_PASSES = frozenset({"passed", "xfailed"})


@dataclass(frozen=True)
class Vetted:
    """A row whose lists of tests and statement are filled in, or the reason why it can't be used."""

    row: Mapping[str, Any]
    reason: str = ""

    @property
    def sound(self) -> bool:
        """It can be used."""
        return not self.reason


async def vet(row: Mapping[str, Any], name: str, repeats: int = REPEATS, *, hidden: bool = False) -> Vetted:
    """Runs the tests of a row with its repair and without, several times each, and writes down what they tell.

    Args:
        row: all but the lists of tests and the statement.
        name: what the statement calls the code.
        repeats: runs of each kind.
        hidden: the agent won't find the tests that fail.

    Raises:
        TaskError: the row or one of its patches can't be used.
        InfraError: the task can't be set up, or the grader failed.
    """
    instance = read_instance(Task.from_row({**row, "FAIL_TO_PASS": ["unknown"], "PASS_TO_PASS": []}))
    repair = await asyncio.to_thread(gold_changes, instance)
    runs: dict[str, list[TestReport]] = {"with the repair": [], "without the repair": []}
    for when in list(runs) * repeats:
        report = await run_tests(instance, repair if when == "with the repair" else {})
        if reason := _ended_early(when, report):
            return Vetted(row, reason)
        runs[when].append(report)
    if reason := next(filter(None, map(_flaky, runs, runs.values())), ""):
        return Vetted(row, reason)
    gold, nothing = (reports[0] for reports in runs.values())
    fail, kept = _told_apart(gold, nothing)
    if not fail:
        return Vetted(row, "no test fails without the repair and passes with it")
    if not kept:
        return Vetted(row, "no test passes both with the repair and without")
    example = await asyncio.to_thread(source_of, instance, fail[0]) if hidden else ""
    text = statement(name, fail, nothing, str(row["patch"]), example, hidden=hidden)
    return Vetted({**row, "problem_statement": text, "FAIL_TO_PASS": fail, "PASS_TO_PASS": kept})


def _ended_early(when: str, report: TestReport) -> str:
    if not report.intact:
        return f"the tests did not run to their end {when}: {report.messages.get('', '')[-200:]}".rstrip(": ")
    return f"tests use up the memory {when}" if uses_up_memory(report) else ""


def _flaky(when: str, reports: Sequence[TestReport]) -> str:
    names = {name for report in reports for name in report.outcomes}
    flaky = sorted(name for name in names if len({report.outcomes.get(name) for report in reports}) > 1)
    more = ", ..." if len(flaky) > MAX_NAMED else ""
    return f"flaky {when}: {', '.join(flaky[:MAX_NAMED])}{more}" if flaky else ""


def uses_up_memory(report: TestReport) -> bool:
    """Whether a test ended for want of memory: on a larger or slower machine it would end otherwise."""
    return any("MemoryError" in message for message in report.messages.values())


def _told_apart(gold: TestReport, nothing: TestReport) -> tuple[list[str], list[str]]:
    passing = sorted(name for name, outcome in gold.outcomes.items() if outcome in _PASSES)
    kept = [name for name in passing if nothing.outcomes.get(name) in _PASSES]
    return [name for name in passing if name not in set(kept)], kept
