"""Grading: the agent's changes on a pristine tree, in a fresh sandbox, with the task's own tests.

Tests, conftest files and configuration are those of the task; git and everything else that the agent left is not
looked at. The repository can't be written while its tests run, so that code under test can't change the tests.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path, PurePosixPath

from skyrl_gym.envs.swe.changes import Changes, lay_on, taken_over
from skyrl_gym.envs.swe.instance import Instance
from skyrl_gym.envs.swe.packages import PYTHON_ENV, runtime
from skyrl_gym.envs.swe.patches import apply_patch
from skyrl_gym.envs.swe.store import make_readable, scratch_folder
from skyrl_gym.envs.swe.trees import REPOSITORY, base_tree, copy_tree
from skyrl_gym.errors import GradeError
from skyrl_gym.sandbox import ExecResult, Mount, SandboxSpec, open_sandbox

__all__ = ["TestReport", "run_tests", "score", "verdicts"]

TESTS_S = 300.0
SHIPPED_TESTS_S = 60.0  # they take one
MAX_OUTPUT = 16 * 1_048_576
_PASSED = frozenset({"passed", "xfailed"})
_KEPT = frozenset({"passed", "xfailed", "skipped"})
_SOME_TESTS_FAILED = 1  # pytest's exit status: the planted test does fail


@dataclass(frozen=True)
class TestReport:
    """Outcomes by test id; `intact` is False when there is no report or pytest was tampered with."""

    __test__ = False  # not a test case

    intact: bool
    outcomes: Mapping[str, str] = field(default_factory=dict)
    messages: Mapping[str, str] = field(default_factory=dict)


async def run_tests(instance: Instance, changes: Changes) -> TestReport:
    """The report of the task's tests on its base tree with those of the changes that count.

    Raises:
        GradeError: the tests could not even be begun.
        SandboxError: the grading sandbox failed.
        TaskError: the task's own test patch does not apply.
    """
    with scratch_folder() as scratch:
        canary = f"test_{secrets.token_hex(8)}.py"
        tree = await asyncio.to_thread(_tree_to_test, instance, changes, scratch, canary)
        return await _run(instance, tree, canary)


def verdicts(instance: Instance, report: TestReport) -> dict[str, bool]:
    """For each listed test, whether it ends as it has to."""
    outcomes = _by_listed_name(report)
    fixed = {name: _all_in(_PASSED, outcomes, name) for name in instance.fail_to_pass}
    return {name: _all_in(_KEPT, outcomes, name) for name in instance.pass_to_pass} | fixed


def score(instance: Instance, report: TestReport) -> tuple[float, dict[str, float]]:
    """Reward 1 when every test passes that has to, else 0; and which share of both kinds does."""
    passes = verdicts(instance, report)
    metrics = {
        "fail_to_pass": _share(passes[name] for name in instance.fail_to_pass),
        "pass_to_pass": _share(passes[name] for name in instance.pass_to_pass),
        "tests_ran": float(report.intact),
    }
    return float(all(passes.values())), metrics


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
    lay_on(tree, taken_over(instance, changes))
    (tree / canary).write_text("def test_must_fail():\n    assert 1 == 2\n")
    make_readable(scratch)
    return tree


async def _run(instance: Instance, tree: Path, canary: str) -> TestReport:
    needed = await asyncio.to_thread(runtime, instance)
    nonce = secrets.token_hex(16)
    order = {
        "nonce": nonce,
        "repository": REPOSITORY,
        "paths": needed.paths,
        "code": str(PurePosixPath(REPOSITORY) / instance.python_path),
        "tests": instance.tests,
        "canary": canary,
    }
    program = (files("skyrl_gym.envs.swe") / "run_tests.py").read_text()
    spec = SandboxSpec(mounts=(Mount(str(tree), REPOSITORY), *needed.mounts), workdir=REPOSITORY, env=PYTHON_ENV)
    async with await open_sandbox(spec) as box:
        result = await box.exec(
            # Begun elsewhere: Python looks for modules in the folder where it is begun.
            ["sh", "-c", 'cd / && exec "$@"', "sh", needed.python, "-s", "-S", "-c", program],
            timeout_s=TESTS_S if instance.sdist else SHIPPED_TESTS_S,
            stdin=json.dumps(order).encode() + b"\n",
            max_bytes=MAX_OUTPUT,
        )
    return _read_report(result, nonce)


def _read_report(result: ExecResult, nonce: str) -> TestReport:
    """What a program says that announces itself, runs the tests, and reports; each line begins with the nonce.

    An announcement without a report: code under test has kept the tests from their end.
    """
    lines = [line[len(nonce) :] for line in result.output.split(b"\n") if line.startswith(nonce.encode())]
    if not lines:
        raise GradeError(f"the tests could not be begun ({result.status}): {result.text.strip()[-500:]}")
    try:
        data = json.loads(lines[-1])
        intact = data["intact"] is True and data["code"] == _SOME_TESTS_FAILED
        return TestReport(intact, data["outcomes"], data["messages"])
    except (ValueError, KeyError, TypeError):
        return TestReport(intact=False, messages={"": result.text[-2_000:]})
