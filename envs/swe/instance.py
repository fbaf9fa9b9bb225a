"""A task in SWE-bench's schema."""

from __future__ import annotations

import json
import re
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
    is imported from, relative to its root; `tests` are the files or folders that are run.
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
    fail, passing = _names(task, "FAIL_TO_PASS"), _names(task, "PASS_TO_PASS")
    if not fail:
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
