"""What the program in the grading sandbox is told, and what is read from what it says."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import PurePosixPath

from skyrl_gym.envs.swe.instance import Instance
from skyrl_gym.errors import GradeError
from skyrl_gym.sandbox import ExecResult

__all__ = [
    "Order",
    "TestReport",
    "announced",
    "planted_test",
    "program",
    "read_report",
    "watch",
    "without_reports",
]

_SOME_TESTS_FAILED = 1  # pytest's exit status: a planted test does fail


@dataclass(frozen=True)
class TestReport:
    """Outcomes by test id; `intact` is False when there is no report or pytest was tampered with.

    `patch` is the diff that was tested.
    """

    __test__ = False  # not a test case

    intact: bool
    outcomes: Mapping[str, str] = field(default_factory=dict)
    messages: Mapping[str, str] = field(default_factory=dict)
    patch: str = ""


@dataclass(frozen=True)
class Order:
    """What is to be run where: `stdin` for the program; only what begins with the nonce is its word."""

    nonce: str
    canary: str
    stdin: bytes

    @classmethod
    def of(cls, instance: Instance, repository: str, paths: Sequence[str]) -> Order:
        """The order to run a task's tests on a repository, with packages from `paths`."""
        nonce, canary = secrets.token_hex(16), planted_test()
        what = {
            "nonce": nonce,
            "repository": repository,
            "paths": paths,
            "code": str(PurePosixPath(repository) / instance.python_path),
            "tests": instance.tests,
            "canary": canary,
        }
        return cls(nonce, canary, json.dumps(what).encode() + b"\n")


CANARY = "def test_must_fail():\n    assert 1 == 2\n"


def planted_test() -> str:
    """A name for the file of the test that must fail."""
    return f"test_{secrets.token_hex(8)}.py"


def program() -> str:
    """The source of the program, which is also the plugin."""
    return (files("skyrl_gym.envs.swe") / "run_tests.py").read_text()


def watch(runner: str) -> str:
    """The source of what watches a run of `unittest` or `sympy`."""
    return (files("skyrl_gym.envs.swe") / f"watch_{runner}.py").read_text()


def without_reports(result: ExecResult, nonce: str) -> ExecResult:
    """What the run itself has printed."""
    lines = (line for line in result.output.split(b"\n") if not line.startswith(nonce.encode()))
    return replace(result, output=b"\n".join(lines))


def announced(result: ExecResult, nonce: str) -> bool:
    """Whether the program or plugin has said that pytest is there."""
    return bool(_lines(result, nonce))


def read_report(result: ExecResult, nonce: str, codes: Sequence[int] = (_SOME_TESTS_FAILED,)) -> TestReport:
    """The report, whole if pytest ended with one of these statuses.

    An announcement without a report: code under test has kept the tests from their end.

    Raises:
        GradeError: there is not even an announcement.
    """
    lines = _lines(result, nonce)
    if not lines:
        raise GradeError(f"the tests could not be begun ({result.status}): {result.text.strip()[-500:]}")
    try:
        data = json.loads(lines[-1])
        intact = data["intact"] is True and data["code"] in codes
        return TestReport(intact, data["outcomes"], data["messages"])
    except (ValueError, KeyError, TypeError):
        return TestReport(intact=False, messages={"": result.text[-2_000:]})


def _lines(result: ExecResult, nonce: str) -> list[bytes]:
    return [line[len(nonce) :] for line in result.output.split(b"\n") if line.startswith(nonce.encode())]
