"""A task in SWE-bench's schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from skyrl_gym.errors import TaskError
from skyrl_gym.tasks import Task

__all__ = ["Instance", "Sdist", "read_instance"]


@dataclass(frozen=True)
class Sdist:
    """A source distribution on the package index."""

    package: str
    version: str
    filename: str
    sha256: str


@dataclass(frozen=True)
class Instance:
    """What is needed to set up and grade one task.

    `sdist` is None for the packages that ship with the suite. `python_path` is where the repository's code
    is imported from, relative to its root; `tests` are the files that are run.
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


def read_instance(task: Task) -> Instance:
    """The instance in a row.

    Raises:
        TaskError: a field is missing or of the wrong kind; the message names it.
    """
    row = task.data
    fail, passing = _names(task, "FAIL_TO_PASS"), _names(task, "PASS_TO_PASS")
    if not fail:
        raise TaskError(f"task {task.id}: FAIL_TO_PASS is empty: nothing would have to be repaired")
    tests = row.get("test_files") or sorted({name.partition("::")[0] for name in (*fail, *passing)})
    return Instance(
        id=task.id,
        repo=_text(task, "repo"),
        problem_statement=_text(task, "problem_statement"),
        patch=_text(task, "patch"),
        test_patch=str(row.get("test_patch") or ""),
        fail_to_pass=fail,
        pass_to_pass=passing,
        tests=tuple(tests),
        python_path=str(row.get("pythonpath") or "."),
        requirements=tuple(row.get("pip_packages") or ()),
        sdist=_sdist(task) if "sdist_base" in row else None,
    )


def _text(task: Task, name: str) -> str:
    value = task.require(name)
    if not isinstance(value, str):
        raise TaskError(f"task {task.id}: {name} is a text; got {type(value).__name__}")
    return value


def _names(task: Task, name: str) -> tuple[str, ...]:
    """A list of test ids, or the JSON text of one: published data sets have both."""
    value = task.require(name)
    try:
        value = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        raise TaskError(f"task {task.id}: {name} is a list, or the JSON text of one; got {value!r:.80}") from None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TaskError(f"task {task.id}: {name} is a list of test ids; got {value!r:.80}")
    return tuple(value)


def _sdist(task: Task) -> Sdist:
    source: Any = task.require("sdist_base")
    if not isinstance(source, Mapping) or not {"filename", "sha256"} <= set(source):
        raise TaskError(f"task {task.id}: sdist_base is an object with filename and sha256; got {source!r:.80}")
    return Sdist(_text(task, "package"), _text(task, "base_version"), source["filename"], source["sha256"])
