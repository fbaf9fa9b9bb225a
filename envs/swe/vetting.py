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
from skyrl_gym.envs.swe.statements import statement
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
    gold: list[TestReport] = []
    nothing: list[TestReport] = []
    for _ in range(repeats):
        gold.append(await run_tests(instance, repair))
        nothing.append(await run_tests(instance, {}))
    if reason := _broken("with the repair", gold) or _broken("without the repair", nothing):
        return Vetted(row, reason)
    fail, kept = _told_apart(gold[0], nothing[0])
    if not fail:
        return Vetted(row, "no test fails without the repair and passes with it")
    if not kept:
        return Vetted(row, "no test passes both with the repair and without")
    text = statement(name, fail, nothing[0], str(row["patch"]), hidden=hidden)
    return Vetted({**row, "problem_statement": text, "FAIL_TO_PASS": fail, "PASS_TO_PASS": kept})


def _broken(when: str, reports: Sequence[TestReport]) -> str:
    if ended := next((report for report in reports if not report.intact), None):
        return f"the tests did not run to their end {when}: {ended.messages.get('', '')[-200:]}".rstrip(": ")
    if any(uses_up_memory(report) for report in reports):
        return f"tests use up the memory {when}"
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
