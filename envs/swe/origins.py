"""What tasks are made from: a tree whose code is right, and what a row says of where it is from."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skyrl_gym.envs.swe.history import head
from skyrl_gym.envs.swe.index import find
from skyrl_gym.envs.swe.instance import Instance, Sdist, read_instance
from skyrl_gym.envs.swe.packages import runtime
from skyrl_gym.envs.swe.trees import base_tree
from skyrl_gym.errors import ConfigError
from skyrl_gym.tasks import Task

__all__ = ["DATA", "Origin", "Testing", "git_origin", "sdist_fields", "sdist_origin", "shipped", "shipped_packages"]

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Testing:
    """How a repository's tests are run. `python_path` and `tests` are relative to its root; empty for a guess."""

    __test__ = False  # not a test case

    tests: Sequence[str] = ()
    python_path: str = ""
    requirements: Sequence[str] = ()

    def fields(self, tree: Path) -> dict[str, Any]:
        """The fields of a row, with guesses from a tree.

        Raises:
            ConfigError: what is named is not there.
        """
        named = list(self.tests) or [name for name in ("tests", "test") if (tree / name).is_dir()] or ["."]
        path = self.python_path or ("src" if (tree / "src").is_dir() else ".")
        if missing := [name for name in (*named, path) if not (tree / name).exists()]:
            raise ConfigError(f"the repository has no {missing[0]!r}; it has {', '.join(sorted(_names(tree)))}")
        return {"test_files": named, "pythonpath": path, "pip_packages": _with_pytest(self.requirements)}


@dataclass(frozen=True)
class Origin:
    """A tree with right code. `fields` are those of every row that is made from it."""

    name: str
    tree: Path
    fields: Mapping[str, Any]

    def right(self) -> Instance:
        """An instance without a bug, whose tests can be run."""
        return _right(self.name, self.fields)


def shipped_packages() -> list[str]:
    """The packages that come with the suite."""
    return sorted(path.name for path in (DATA / "packages").iterdir())


def shipped(package: str) -> Origin:
    """A package that comes with the suite."""
    return Origin(
        package,
        DATA / "packages" / package,
        {"repo": f"skyrl/{package}", "test_patch": "", "test_files": ["tests"], "pythonpath": "."},
    )


def git_origin(url: str, testing: Testing) -> Origin:
    """The commit that is checked out in a repository, or the default branch's.

    Raises:
        SetupError: there is no such repository, or its requirements can't be installed.
        ConfigError: the tests are not where they are said to be.
    """
    address = str(Path(url).absolute()) if Path(url).is_dir() else url
    name = re.sub(r"\.git$", "", address.rstrip("/").rpartition("/")[2])
    source = {"repo": f"local/{name}", "git_url": address, "base_commit": head(address), "injected": True}
    return _origin(name, source, testing)


def sdist_origin(package: str, version: str, testing: Testing) -> Origin:
    """A source distribution on the package index.

    Raises:
        SetupError: the index does not give it, or the requirements.
        ConfigError: the tests are not where they are said to be.
    """
    return _origin(package, {**sdist_fields(find(package, version)), "injected": True}, testing)


def sdist_fields(sdist: Sdist) -> dict[str, Any]:
    """The fields of a row that say that it begins at a source distribution."""
    return {
        "repo": f"pypi/{sdist.package}",
        "package": sdist.package,
        "base_version": sdist.version,
        "sdist_base": {"filename": sdist.filename, "sha256": sdist.sha256},
    }


def _origin(name: str, source: Mapping[str, Any], testing: Testing) -> Origin:
    tree = base_tree(_right(name, source))
    fields = {**source, "test_patch": "", **testing.fields(tree)}
    made = Origin(name, tree, fields)
    _refuse_the_answer(made)
    return made


def _right(name: str, fields: Mapping[str, Any]) -> Instance:
    empty = {"instance_id": name, "patch": "", "problem_statement": "", "FAIL_TO_PASS": ["none"], "PASS_TO_PASS": []}
    return read_instance(Task.from_row({**empty, **fields}))


def _refuse_the_answer(origin: Origin) -> None:
    """Requirements must not bring the repository's own modules: they would be tested in its place."""
    code = origin.tree / str(origin.fields["pythonpath"])
    own = {path.stem for path in code.iterdir() if (path / "__init__.py").is_file() or path.suffix == ".py"}
    for mount in runtime(origin.right()).mounts:
        held = {path.stem for path in Path(mount.source).iterdir()} if mount.target.startswith("/opt/") else set()
        if both := sorted(own & held - {"conftest", "setup", "tests", "test"}):
            raise ConfigError(f"the requirements bring {both[0]!r}, which is the repository's own; leave it out")


def _with_pytest(requirements: Sequence[str]) -> list[str]:
    """pytest comes with the suite unless packages of their own are asked for."""
    if not requirements or any(re.match(r"pytest\b(?!-)", pin) for pin in requirements):
        return list(requirements)
    return [*requirements, f"pytest=={importlib.metadata.version('pytest')}"]


def _names(tree: Path) -> list[str]:
    return [path.name for path in tree.iterdir() if not path.name.startswith(".")]
