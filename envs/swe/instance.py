"""A task in SWE-bench's schema."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from skyrl_gym.errors import TaskError
from skyrl_gym.tasks import Task

__all__ = ["Commit", "Image", "Instance", "Sdist", "read_instance"]

TESTBED = "/testbed"
"""Where the images of SWE-bench and its kin hold the repository."""
_OUTCOMES = {"PASSED": "passed", "FAILED": "failed", "ERROR": "failed"}
CONDA = ". /opt/miniconda3/bin/activate && conda activate testbed"


@dataclass(frozen=True)
class Sdist:
    """A source distribution on the package index."""

    package: str
    version: str
    filename: str
    sha256: str


@dataclass(frozen=True)
class Commit:
    """A commit of a git repository: a folder here, or an address that git can clone."""

    url: str
    commit: str


@dataclass(frozen=True)
class Image:
    """A container image that holds the repository and all that its tests need.

    `repository` is the folder in it; `activate` shell code that makes its tools found; `hidden` what an agent must
    not find there. `eval_script` runs the tests and prints a log that `log_parser` reads; without one, pytest is
    run on the files of the listed tests. `fail_only`: the log names the tests that fail, and no others.
    """

    name: str
    repository: str
    activate: str
    hidden: tuple[str, ...]
    eval_script: str
    log_parser: str
    fail_only: bool


@dataclass(frozen=True)
class Instance:
    """What is needed to set up and grade one task.

    The repository comes from an `image`, an `sdist`, a `git` commit, or, with none, a package that ships with the
    suite. `patch` is the repair, or, where `reversed`, the bug. `injected`: what the repository comes from is right,
    and the bug is put in. `python_path` is where the code is imported from, relative to the root; `tests` are the
    files or folders that are run. `expected`, where it isn't empty, stands for both lists of tests: the outcome that
    each has to have, no other test to be run.
    """

    id: str
    repo: str
    problem_statement: str
    patch: str
    test_patch: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    tests: tuple[str, ...]
    python_path: str
    requirements: tuple[str, ...]
    sdist: Sdist | None
    git: Commit | None = None
    image: Image | None = None
    injected: bool = False
    reversed: bool = False
    expected: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_shipped(self) -> bool:
        """The repository is a package that ships with the suite."""
        return self.sdist is None and self.git is None and self.image is None

    @property
    def listed(self) -> tuple[str, ...]:
        """Every test of both lists."""
        return (*self.fail_to_pass, *self.pass_to_pass)


def read_instance(task: Task) -> Instance:
    """The instance in a row of SWE-bench's schema; `schemas.standard_row` makes one of the other published ones.

    Raises:
        TaskError: a field is missing or of the wrong kind; the message names it.
    """
    expected = _expected(task)
    fail, passing = _names(task, "FAIL_TO_PASS"), _names(task, "PASS_TO_PASS")
    if not fail and not expected:
        raise TaskError(f"task {task.id}: FAIL_TO_PASS is empty: nothing would have to be repaired")
    return Instance(
        id=task.id,
        repo=_text(task, "repo"),
        problem_statement=_text(task, "problem_statement"),
        patch=_text(task, "patch"),
        test_patch=_text(task, "test_patch", ""),
        fail_to_pass=fail,
        pass_to_pass=passing,
        tests=_names(task, "test_files", ()) or tuple(sorted({name.partition("::")[0] for name in (*fail, *passing)})),
        python_path=_text(task, "pythonpath", "."),
        requirements=_names(task, "pip_packages", ()),
        sdist=_sdist(task) if task.data.get("sdist_base") is not None else None,
        image=_image(task) if task.data.get("image") else None,
        git=Commit(_text(task, "git_url"), _text(task, "base_commit")) if task.data.get("git_url") else None,
        injected=task.data.get("injected") is True,
        reversed=task.data.get("reversed") is True,
        expected=expected,
    )


def _text(task: Task, name: str, default: str | None = None) -> str:
    """A text; with a default, a field that may be missing or null."""
    value = task.require(name) if default is None else task.data.get(name, default)
    value = default if value is None else value
    if not isinstance(value, str):
        raise TaskError(f"task {task.id}: {name} is a text; got {type(value).__name__}")
    return value


def _names(task: Task, name: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """A list of texts, or the JSON text of one: published data sets have both."""
    if default is not None and task.data.get(name) is None:
        return default
    value = task.require(name)
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        raise TaskError(f"task {task.id}: {name} is a list, or the JSON text of one; got {value!r:.80}") from None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TaskError(f"task {task.id}: {name} is a list of texts; got {value!r:.80}")
    return tuple(value)


def _sdist(task: Task) -> Sdist:
    source: Any = task.data["sdist_base"]
    if not isinstance(source, Mapping) or not {"filename", "sha256"} <= set(source):
        raise TaskError(f"task {task.id}: sdist_base is an object with filename and sha256; got {source!r:.80}")
    if not re.fullmatch("[0-9a-f]{64}", str(source["sha256"])):
        raise TaskError(f"task {task.id}: sdist_base.sha256 is 64 hex digits; got {source['sha256']!r:.80}")
    if "/" in str(source["filename"]):
        raise TaskError(f"task {task.id}: sdist_base.filename is the name of a file; got {source['filename']!r:.80}")
    return Sdist(_text(task, "package"), _text(task, "base_version"), str(source["filename"]), source["sha256"])


def _image(task: Task) -> Image:
    return Image(
        name=_text(task, "image"),
        repository=_text(task, "repository", TESTBED),
        activate=_text(task, "activate", CONDA),
        hidden=_names(task, "hidden", ()),
        eval_script=_text(task, "eval_script", ""),
        log_parser=_text(task, "log_parser", "") or "pytest",
        fail_only=task.data.get("eval_type") == "fail_only",
    )


def _expected(task: Task) -> Mapping[str, str]:
    value: Any = task.data.get("expected") or {}
    if not isinstance(value, Mapping) or not all(isinstance(item, str) for item in (*value, *value.values())):
        raise TaskError(f"task {task.id}: expected maps names of tests to outcomes; got {value!r:.80}")
    return {name: _OUTCOMES.get(outcome.upper(), outcome.lower()) for name, outcome in value.items()}
