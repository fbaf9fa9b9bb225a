"""Grading: the agent's changes on a pristine tree, in a fresh sandbox, with the original tests.

Only changed regular files outside tests and test configuration are taken over. Tests, conftest files and
configuration are those of the task; git and everything else that the agent left is not looked at.
"""

from __future__ import annotations

import asyncio
import io
import json
import secrets
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path, PurePosixPath

from skyrl_gym.envs.swe.instance import Instance
from skyrl_gym.envs.swe.prepare import REPOSITORY, apply_patch, runtime
from skyrl_gym.errors import GradeError
from skyrl_gym.sandbox import Mount, Sandbox, SandboxSpec, open_sandbox

__all__ = ["Changes", "TestReport", "changes_of", "is_protected", "read_archive", "run_tests", "score"]

TESTS_TIMEOUT_S = 300.0
MAX_ARCHIVE = 256 * 1_048_576
_TEST_FOLDERS = frozenset({"test", "tests", "testing"})
_CONFIGURATION = frozenset(
    {
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "tox.ini",
        "setup.cfg",
        "pyproject.toml",
        "sitecustomize.py",
        "usercustomize.py",
    }
)
_PASSED = frozenset({"passed", "xfailed"})
_KEPT = frozenset({"passed", "xfailed", "skipped"})

Changes = Mapping[str, bytes | None]
"""Path -> new content, or None for a file that was deleted."""


@dataclass(frozen=True)
class TestReport:
    """Outcomes by test id; `intact` is False when there is no report or pytest was tampered with."""

    __test__ = False  # not a test case

    intact: bool
    outcomes: Mapping[str, str] = field(default_factory=dict)
    messages: Mapping[str, str] = field(default_factory=dict)


def is_protected(path: str) -> bool:
    """Whether a file belongs to the tests or their configuration, or could stand in for a module of Python's."""
    parts = PurePosixPath(path).parts
    name = parts[-1]
    if _TEST_FOLDERS & set(parts[:-1]) or name in _CONFIGURATION or name.endswith((".pth", ".pyc", ".so")):
        return True
    if name.startswith("test_") or name.endswith("_test.py") or ".git" in parts or "__pycache__" in parts:
        return True
    return parts[0].removesuffix(".py") in sys.stdlib_module_names


async def read_archive(box: Sandbox, folder: str = REPOSITORY) -> dict[str, bytes]:
    """The regular files of a folder in a sandbox, read by a fresh process, not by the agent's shell.

    Raises:
        GradeError: the folder can't be read or is too large.
    """
    command = ["tar", "-C", folder, "-c", "--exclude=./.git", "--exclude=__pycache__", "."]
    result = await box.exec(command, timeout_s=60, max_bytes=2 * MAX_ARCHIVE)
    if result.dropped_bytes or len(result.output) > MAX_ARCHIVE:
        raise GradeError(f"the repository is larger than {MAX_ARCHIVE} bytes")
    try:
        with tarfile.open(fileobj=io.BytesIO(result.output)) as archive:
            return {_clean(m.name): archive.extractfile(m).read() for m in archive if m.isreg()}  # type: ignore[union-attr]
    except tarfile.TarError as error:
        raise GradeError(f"can't read the repository back: {error}; {result.output[-200:]!r}") from error


def changes_of(tree: Path, held: Mapping[str, bytes]) -> Changes:
    """What differs from the base tree, outside tests and their configuration."""
    base = {
        str(path.relative_to(tree)): path
        for path in tree.rglob("*")
        if path.is_file() and not path.is_symlink() and ".git" not in path.relative_to(tree).parts
    }
    changed: dict[str, bytes | None] = {
        path: data for path, data in held.items() if path not in base or base[path].read_bytes() != data
    }
    changed |= dict.fromkeys(path for path in base if path not in held)
    return {path: data for path, data in changed.items() if not is_protected(path)}


async def run_tests(instance: Instance, tree: Path, changes: Changes, backend: str) -> TestReport:
    """The report of the task's tests on the base tree with these changes.

    Raises:
        SandboxError: the grading sandbox failed.
        TaskError: the task's own test patch does not apply.
    """
    with tempfile.TemporaryDirectory(prefix="skyrl-grade-") as scratch:
        pristine = Path(scratch) / "tree"
        shutil.copytree(tree, pristine, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        _take_over(pristine, changes)
        apply_patch(pristine, instance.test_patch)
        canary = f"test_{secrets.token_hex(8)}.py"
        (pristine / canary).write_text("def test_must_fail():\n    assert 1 == 2\n")
        return await _run(instance, pristine, canary, backend)


def score(instance: Instance, report: TestReport) -> tuple[float, dict[str, float]]:
    """Reward 1 when every test passes that has to, else 0; and which share of both kinds does."""
    outcomes = _by_listed_name(report)
    fixed = [_all_in(_PASSED, outcomes, name) for name in instance.fail_to_pass]
    kept = [_all_in(_KEPT, outcomes, name) for name in instance.pass_to_pass]
    metrics = {
        "fail_to_pass": sum(fixed) / len(fixed),
        "pass_to_pass": sum(kept) / len(kept) if kept else 1.0,
        "tests_ran": float(report.intact),
    }
    return float(all(fixed) and all(kept)), metrics


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


async def _run(instance: Instance, pristine: Path, canary: str, backend: str) -> TestReport:
    needed = await asyncio.to_thread(runtime, instance)
    nonce = secrets.token_hex(16)
    order = {
        "nonce": nonce,
        "paths": [list(needed.paths), [str(PurePosixPath(REPOSITORY) / instance.python_path)]],
        "tests": list(instance.tests),
        "canary": canary,
    }
    with as_file(files("skyrl_gym.envs.swe") / "run_tests.py") as script:
        program = script.read_text()
    spec = SandboxSpec(
        mounts=(Mount(str(pristine), REPOSITORY, "private"), *needed.mounts),
        workdir=REPOSITORY,
    )
    async with await open_sandbox(spec, backend) as box:
        await box.write("/tmp/run_tests.py", program.encode())
        result = await box.exec(
            [needed.python, "-I", "-B", "/tmp/run_tests.py"],
            timeout_s=TESTS_TIMEOUT_S,
            stdin=json.dumps(order).encode() + b"\n",
            max_bytes=16 * 1_048_576,
        )
    return _read_report(result.output, nonce)


def _read_report(output: bytes, nonce: str) -> TestReport:
    """No report, or one that can't be read, means that the tests did not run to their end."""
    lines = [line for line in output.split(b"\n") if line.startswith(nonce.encode())]
    if not lines:
        return TestReport(intact=False, messages={"": output[-2_000:].decode(errors="replace")})
    try:
        data = json.loads(lines[-1].removeprefix(nonce.encode()))
        return TestReport(data["intact"] is True, data["outcomes"], data["messages"])
    except (ValueError, KeyError):
        return TestReport(intact=False)


def _take_over(tree: Path, changes: Changes) -> None:
    root = tree.resolve()
    for path, data in changes.items():
        target = tree / path
        # Through no symlink: neither of the base tree nor one that another change made.
        if not target.parent.resolve().is_relative_to(root) or target.is_symlink():
            continue
        if data is None:
            target.unlink(missing_ok=True)
        elif not target.is_dir():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)


def _clean(name: str) -> str:
    return str(PurePosixPath(name))
