"""Grading: the agent's changes on a pristine tree, in a fresh sandbox, with the task's own tests.

Tests, conftest files and configuration are those of the task; git and everything else that the agent left is not
looked at. The repository can't be written while its tests run, so that code under test can't change the tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from skyrl_gym.envs.swe.changes import Changes, lay_on, taken_over
from skyrl_gym.envs.swe.container import test_in_container
from skyrl_gym.envs.swe.diffs import diff, held_in
from skyrl_gym.envs.swe.instance import Instance
from skyrl_gym.envs.swe.packages import PYTHON_ENV, Runtime, runtime
from skyrl_gym.envs.swe.patches import apply_patch
from skyrl_gym.envs.swe.report import CANARY, Order, TestReport, program, read_report
from skyrl_gym.envs.swe.store import make_readable, scratch_folder
from skyrl_gym.envs.swe.trees import REPOSITORY, base_tree, copy_tree
from skyrl_gym.sandbox import Mount, SandboxSpec, open_sandbox

__all__ = ["TestReport", "run_tests", "score", "verdicts"]

TESTS_S = 300.0
SHIPPED_TESTS_S = 60.0  # they take one
MAX_OUTPUT = 16 * 1_048_576
_PASSED = frozenset({"passed", "xfailed"})
_KEPT = frozenset({"passed", "xfailed", "skipped"})


async def run_tests(instance: Instance, changes: Changes, timeout_s: float | None = None) -> TestReport:
    """The report of the task's tests on what it starts from, with those of the changes that count.

    Args:
        instance: the task.
        changes: what the agent has changed.
        timeout_s: seconds for the tests, of a repository that is in no image; by default `SHIPPED_TESTS_S` for a
            package that ships with the suite, `TESTS_S` for others.

    Raises:
        GradeError: the tests could not even be begun.
        SandboxError: the grading sandbox failed.
        TaskError: the task's own test patch does not apply.
    """
    changes = taken_over(instance, changes)
    if instance.image:
        return await test_in_container(instance, changes)
    needed = await asyncio.to_thread(runtime, instance)
    order = Order.of(instance, REPOSITORY, needed.paths)
    with scratch_folder() as scratch:
        tree = await asyncio.to_thread(_tree_to_test, instance, changes, scratch, order.canary)
        limit = SHIPPED_TESTS_S if instance.is_shipped else TESTS_S
        report = await _run(tree, needed, order, timeout_s or limit)
    return replace(report, patch=await asyncio.to_thread(_patch, instance, changes))


def verdicts(instance: Instance, report: TestReport) -> dict[str, bool]:
    """For each listed test, whether it ends as it has to."""
    if instance.expected:
        return _as_expected(instance.expected, report)
    outcomes = _by_listed_name(report)
    if instance.image and instance.image.fail_only and report.intact:
        return {name: "failed" not in outcomes.get(_fold(name), []) for name in instance.listed}
    fixed = {name: _all_in(_PASSED, outcomes, name) for name in instance.fail_to_pass}
    return {name: _all_in(_KEPT, outcomes, name) for name in instance.pass_to_pass} | fixed


def score(instance: Instance, report: TestReport) -> tuple[float, dict[str, float]]:
    """Reward 1 when every test ends as it has to, else 0; and which share of both kinds does."""
    passes = verdicts(instance, report)
    if instance.expected:
        return float(all(passes.values())), {"as_expected": _share(passes.values()), "tests_ran": float(report.intact)}
    metrics = {
        "fail_to_pass": _share(passes[name] for name in instance.fail_to_pass),
        "pass_to_pass": _share(passes[name] for name in instance.pass_to_pass),
        "tests_ran": float(report.intact),
    }
    return float(all(passes.values())), metrics


def _as_expected(expected: Mapping[str, str], report: TestReport) -> dict[str, bool]:
    """A test that is not expected must not have run."""
    ran = report.outcomes if report.intact else {}
    return {name: ran.get(name) == expected.get(name) for name in expected.keys() | ran.keys()}


def _share(values: Iterable[bool]) -> float:
    """1 for none."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else 1.0


def _by_listed_name(report: TestReport) -> Mapping[str, list[str]]:
    """Outcomes under the names of published lists, which were read from logs: white space is folded there."""
    found: dict[str, list[str]] = {}
    for name, outcome in report.outcomes.items() if report.intact else ():
        found.setdefault(_fold(name), []).append(outcome)
    return found


def _all_in(wanted: frozenset[str], outcomes: Mapping[str, list[str]], name: str) -> bool:
    """Whether the test has run and every outcome under its name is a wanted one.

    A name that a log cut inside its brackets stands for all tests that begin with it.
    """
    key = _fold(name)
    if "[" in key and not key.endswith("]"):
        held = [outcome for other, many in outcomes.items() if other.startswith(key) for outcome in many]
    else:
        held = outcomes.get(key, [])
    return bool(held) and wanted.issuperset(held)


def _fold(name: str) -> str:
    return " ".join(name.split())


def _tree_to_test(instance: Instance, changes: Changes, scratch: Path, canary: str) -> Path:
    tree = scratch / "tree"
    copy_tree(base_tree(instance), tree)
    apply_patch(tree, instance.test_patch)  # before the changes, none of which can then stand in its way
    lay_on(tree, changes)
    (tree / canary).write_text(CANARY)
    make_readable(scratch)
    return tree


def _patch(instance: Instance, changes: Changes) -> str:
    return diff(held_in(base_tree(instance), changes), changes)


async def _run(tree: Path, needed: Runtime, order: Order, timeout_s: float) -> TestReport:
    spec = SandboxSpec(mounts=(Mount(str(tree), REPOSITORY), *needed.mounts), workdir=REPOSITORY, env=PYTHON_ENV)
    async with await open_sandbox(spec) as box:
        result = await box.exec(
            # Begun elsewhere: Python looks for modules in the folder where it is begun.
            ["sh", "-c", 'cd / && exec "$@"', "sh", needed.python, "-s", "-S", "-c", program()],
            timeout_s=timeout_s,
            stdin=order.stdin,
            max_bytes=MAX_OUTPUT,
        )
    return read_report(result, order.nonce)
