"""What a log of a test run says: outcomes by test id. pytest's logs are read here, others by well-kept packages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from skyrl_gym.errors import MissingDependency, TaskError

__all__ = [
    "END",
    "START",
    "UNITTEST",
    "Outcomes",
    "as_listed",
    "confirmed",
    "is_told_by_runner",
    "log_parser",
    "parse_pytest",
    "reads_pytest",
    "runner_of",
    "section",
    "suite_ran",
]

Outcomes: TypeAlias = Mapping[str, str]
"""Test id -> passed, failed, skipped, xfailed or xpassed."""

UNITTEST = "unittest"
"""The reader of no log: a run of unittest's that is watched."""

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
_WORDS = {
    "PASSED": "passed",
    "FAILED": "failed",
    "ERROR": "failed",
    "SKIPPED": "skipped",
    "XFAIL": "xfailed",
    "XFAILED": "xfailed",
    "XPASS": "xpassed",
    "XPASSED": "xpassed",
    "PASS": "passed",
    "FAIL": "failed",
    "SKIP": "skipped",
}
_COMMANDS = {
    "unittest": r"-m unittest\b|\bruntests\.py|\bmanage\.py test\b",
    "sympy": r"(?:^|[\s;&/])bin/test(?:\s|$)",
}
_SYMPY = "parse_log_sympy"
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
_STATUS = "PASSED|FAILED|ERROR|SKIPPED|XFAILED|XFAIL|XPASSED|XPASS"
# A test's brackets may hold anything; what follows " - " after them is a message.
_ID = r"\S+?\.\w+(?:::[^\s\[]+)*(?:\[.*?\](?=\s+-\s|\s*$)|\[.*)?"
_SUMMARY = re.compile(rf"^({_STATUS})\s+({_ID})(?:\s+-\s.*)?$")
# `id STATUS [ 12%]` with -v, `[gw0] [ 12%] STATUS id` with xdist.
_PROGRESS = re.compile(rf"^(\S+?\.\w+::.+?)\s+({_STATUS})(?:\s+\(.*\))?\s*(?:\[\s*\d+%\])?$")
_WORKER = re.compile(rf"^\[gw\d+\]\s+(?:\[\s*\d+%\]\s+)?({_STATUS})\s+(\S+?\.\w+(?:::.+?)?)\s*$")
_RULE = re.compile(r"^=+ .*? =+$")
_SUMMARY_RULE = re.compile(r"^=+ short test summary info =+$")
# SWE-bench's names of readers of pytest's logs; the second group writes names of tests in its own way.
_PLAIN = (
    *("pytest", "pytest_v2", "astroid", "astropy", "flask", "marshmallow", "pvlib", "pyvista", "scikit"),
    *("seaborn", "sphinx", "sqlfluff", "xarray"),
)
_CUT = ("pytest_options", "pydicom", "pylint", "requests")
_RAN = re.compile(
    r"[1-9]\d* (?:passing|passed|failing|failed|SUCCESS)|Executed [1-9]|[1-9]\d* specs?, \d+ failures?"
    r"|Tests:\s+[1-9]|^# tests [1-9]|': ok$",
    re.MULTILINE,
)


def log_parser(name: str, script: str) -> Callable[[str], Outcomes]:
    """The reader of a kind of log, by SWE-bench's name (`parse_log_django`), or `multi-swe-bench:ORG/REPO#NUMBER`.

    Where a script runs a runner that tells all itself, the log says nothing.

    Raises:
        MissingDependency: the package that reads it is not installed.
        TaskError: no package has such a reader.
    """
    if reads_pytest(name):
        return parse_pytest
    if is_told_by_runner(name, script):
        return lambda log: {}
    if name.startswith("multi-swe-bench:"):
        return _multi_swe_parser(name.partition(":")[2])
    return _swebench_parser(name)


def section(log: str) -> str:
    """What stands between SWE-bench's marks, from the first to the last of them; the whole log without them."""
    _, found, rest = log.partition(START)
    return rest.rpartition(END)[0] or rest if found else log


def parse_pytest(log: str) -> dict[str, str]:
    """Outcomes from pytest's log: its last short summary (`-rA`), and lines of progress (`-v`, also of xdist).

    What tests have printed, which `-rA` shows between its rules, is not looked at. Of several outcomes of a test
    the worst counts.
    """
    found: dict[str, str] = {}
    for name, status in _pytest_lines(_ANSI.sub("", log).split("\n")):
        word = _WORDS[status]
        if found.get(name) != "failed":
            found[name] = word
    return found


def _pytest_lines(lines: list[str]) -> Iterator[tuple[str, str]]:
    rules = [number for number, line in enumerate(lines) if _RULE.match(line)]
    summaries = [number for number in rules if _SUMMARY_RULE.match(lines[number])]
    first = next((number for number in rules if "test session starts" not in lines[number]), len(lines))
    for line in lines[:first]:
        if progress := _PROGRESS.match(line):
            yield progress[1], progress[2]
        elif worker := _WORKER.match(line):
            yield worker[2], worker[1]
    for line in lines[summaries[-1] + 1 :] if summaries else ():
        if summary := _SUMMARY.match(line):
            yield summary[2], summary[1]


def suite_ran(log: str) -> bool:
    """Whether a log without a single failure shows that tests were run at all."""
    return _RAN.search(_ANSI.sub("", log)) is not None


def reads_pytest(name: str) -> bool:
    """Whether a reader of this name reads pytest's logs: the outcomes can then be had from pytest itself."""
    return name.removeprefix("parse_log_") in (*_PLAIN, *_CUT, "matplotlib", "r2e")


def runner_of(script: str) -> str:
    """Which runner that can be watched a script runs: `unittest`, or one that is built on it; `sympy`; or none."""
    found = (runner for runner, command in _COMMANDS.items() if re.search(command, script))
    return next(found, "")


def is_told_by_runner(name: str, script: str) -> bool:
    """Whether no log is read: the runner's own word has all names that go with this reader."""
    return name == UNITTEST or (name == _SYMPY and runner_of(script) == "sympy")


def confirmed(logged: Outcomes, ran: Outcomes) -> dict[str, str]:
    """A log's outcomes, as far as those agree that unittest itself has told of.

    A log may write names in its own way: one that is unknown can pass if some test did whose name the log lacks.
    """
    unknown = {name: outcome for name, outcome in logged.items() if name not in ran}
    room = sum(outcome == "passed" and name not in logged for name, outcome in ran.items())
    if sum(outcome == "passed" for outcome in unknown.values()) > room:
        unknown = {name: outcome for name, outcome in unknown.items() if outcome != "passed"}
    return {**unknown, **ran}


def as_listed(outcomes: Outcomes, name: str) -> dict[str, str]:
    """Outcomes under the names that the lists of tests have which go with a reader."""
    match name.removeprefix("parse_log_"):
        case "r2e":  # names without their file, `.` for `::`, and only what passed or failed
            named = ((".".join(test.split("::")[1:]), outcome) for test, outcome in outcomes.items())
            return {test: outcome for test, outcome in named if test and outcome in ("passed", "failed")}
        case "matplotlib":
            mouse = {"MouseButton.LEFT": "1", "MouseButton.RIGHT": "3"}
            return {re.sub("|".join(mouse), lambda m: mouse[m[0]], test): how for test, how in outcomes.items()}
        case reader if reader in _CUT:  # of a path in brackets the last part
            return {re.sub(r"\[/(?!/)[^*]*/([^/]*\])$", r"[/\1", test): how for test, how in outcomes.items()}
    return dict(outcomes)


def _word(status: Any) -> str:
    """Our word for a status of another package's."""
    return _WORDS[str(getattr(status, "value", status)).upper()]


def _swebench_parser(name: str) -> Callable[[str], Outcomes]:
    try:
        # By name: the maps from repositories to parsers disagree with each other and with the rows.
        from swebench.harness.log_parsers import PARSER_REGISTRY
        from swebench.types import TestSpec
    except ImportError:
        raise MissingDependency.extra("swebench", "swebench") from None
    if name not in PARSER_REGISTRY:
        raise TaskError(f"no reader of logs is called {name!r}; swebench has {', '.join(sorted(PARSER_REGISTRY))}")
    parse = PARSER_REGISTRY[name]
    spec = TestSpec("", "", [], "", "", [], [])
    return lambda log: {test: _word(status) for test, status in parse(log, spec).items()}


def _multi_swe_parser(wanted: str) -> Callable[[str], Outcomes]:
    try:
        import multi_swe_bench.harness.repos  # noqa: F401 - registers the readers
        from multi_swe_bench.harness.image import Config
        from multi_swe_bench.harness.instance import Instance
        from multi_swe_bench.harness.pull_request import Base, PullRequest
    except ImportError:
        raise MissingDependency.extra("multi-swe-bench", "multi-swe-bench") from None
    repo, _, number = wanted.partition("#")
    org, _, name = repo.partition("/")
    pull = PullRequest(
        org=org,
        repo=name,
        number=int(number),
        state="closed",
        title="",
        body="",
        base=Base(label="", ref="", sha=""),
        resolved_issues=[],
        fix_patch="",
        test_patch="",
    )
    try:
        instance = Instance.create(pull, Config(need_clone=False, global_env=None, clear_env=False))
    except ValueError as error:
        raise TaskError(f"multi-swe-bench reads no logs of {repo}: {error}") from None
    return lambda log: {test: _word(status) for test, status in instance.parse_log(log)._tests.items()}
