"""Whether tasks can be used: the gold patch scores 1, and doing nothing 0.

    python -m skyrl_gym.envs.swe.validate tasks.jsonl

prints a line for each task of a file and ends with status 1 if one of them can't be used.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from skyrl_gym.envs.swe.changes import Changes, taken_over
from skyrl_gym.envs.swe.grading import TestReport, run_tests, score, verdicts
from skyrl_gym.envs.swe.instance import Instance, read_instance
from skyrl_gym.envs.swe.solve import gold_changes
from skyrl_gym.errors import InfraError, UserError
from skyrl_gym.tasks import Task, TaskSet

__all__ = ["Validation", "main", "validate_task"]

MAX_NAMED = 3


@dataclass(frozen=True)
class Validation:
    """The rewards of the gold patch and of doing nothing, and what is wrong with the task."""

    task_id: str
    gold: float
    nothing: float
    problems: tuple[str, ...]

    @property
    def valid(self) -> bool:
        """The gold patch scores 1, and doing nothing 0."""
        return self.gold == 1 and self.nothing == 0


async def validate_task(task: Task) -> Validation:
    """Grades the gold patch, and no change at all.

    Raises:
        TaskError: the row or one of its patches can't be used.
        InfraError: the task can't be set up, or the grader failed.
    """
    instance = read_instance(task)
    changes = await asyncio.to_thread(gold_changes, instance)
    gold, nothing = await run_tests(instance, changes), await run_tests(instance, {})
    problems = [*_left_out(instance, changes)]
    if not gold.intact:
        problems.append(f"the tests did not run to their end with the gold patch: {gold.messages.get('', '')[-300:]}")
    problems += _named("tests fail with the gold patch", _names(instance, gold, passes=False))
    passing = _names(instance, nothing, passes=True) & set(instance.fail_to_pass)
    problems += _named("tests of FAIL_TO_PASS pass without it", passing)
    return Validation(task.id, score(instance, gold)[0], score(instance, nothing)[0], tuple(problems))


def _names(instance: Instance, report: TestReport, *, passes: bool) -> set[str]:
    return {name for name, passed in verdicts(instance, report).items() if passed is passes}


def _left_out(instance: Instance, changes: Changes) -> list[str]:
    dropped = changes.keys() - taken_over(instance, changes).keys()
    return _named("files of the gold patch are tests or configuration and don't count", dropped)


def _named(what: str, names: Iterable[str]) -> list[str]:
    listed = sorted(names)
    more = ", ..." if len(listed) > MAX_NAMED else ""
    return [f"{len(listed)} {what}: {', '.join(listed[:MAX_NAMED])}{more}"] if listed else []


async def main(path: str) -> int:
    """Prints a line for each task of a file; 1 if one of them can't be used."""
    bad = 0
    for task in TaskSet.load(path):
        try:
            found = await validate_task(task)
            bad += not found.valid
            print(f"{task.id}\t{found.gold:g}\t{found.nothing:g}\t{'; '.join(found.problems) or 'ok'}", flush=True)  # noqa: T201
        except (UserError, InfraError) as error:
            bad += 1
            print(f"{task.id}\t-\t-\t{error}", flush=True)  # noqa: T201
    return min(bad, 1)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(asyncio.run(main(sys.argv[1])))
