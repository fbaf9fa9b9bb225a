"""The history of a git repository, read without touching it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from skyrl_gym.envs.swe.changes import belongs_to_tests
from skyrl_gym.envs.swe.instance import Commit
from skyrl_gym.envs.swe.patches import run_git
from skyrl_gym.envs.swe.store import cached, digest
from skyrl_gym.errors import SetupError

__all__ = ["MAX_FILES", "Repair", "export", "head", "repairs", "split_diff"]

MAX_FILES = 5
"""A commit that changes more files of Python is no single repair."""


@dataclass(frozen=True)
class Repair:
    """A commit that changes code and tests: where it begins, and its two diffs."""

    base: str
    commit: str
    patch: str
    test_patch: str


def head(url: str) -> str:
    """The commit that is checked out, or the default branch's.

    Raises:
        SetupError: there is no such repository.
    """
    return _git(url, "rev-parse", "HEAD^{commit}").strip()


def export(source: Commit, target: Path) -> None:
    """Fills a folder with the files of a commit, also those that archives leave out.

    Raises:
        SetupError: there is no such repository or commit.
    """
    repository = _repository(source.url)
    with tempfile.TemporaryDirectory() as scratch:
        place = _checked(repository, ["rev-parse", "--absolute-git-dir"]).strip()
        env = {"GIT_DIR": place, "GIT_WORK_TREE": str(target), "GIT_INDEX_FILE": str(Path(scratch) / "index")}
        _checked(repository, ["read-tree", source.commit], env)
        _checked(repository, ["checkout-index", "-a", "-q"], env)


def repairs(url: str) -> Iterator[Repair]:
    """The commits from the newest on that change code of Python and tests of it, a few files in all."""
    repository = _repository(url)
    for line in _checked(repository, ["rev-list", "--no-merges", "--parents", "HEAD"]).splitlines():
        commit, *parents = line.split()
        if len(parents) != 1:
            continue
        names = _checked(repository, ["diff", "--name-only", "--no-renames", parents[0], commit]).splitlines()
        python = [name for name in names if name.endswith(".py")]
        tests = [name for name in python if belongs_to_tests(name)]
        if tests and len(tests) < len(python) <= MAX_FILES:
            diff = ["diff", "--no-renames", "--full-index", "--binary", parents[0], commit, "--"]
            code = [name for name in names if not belongs_to_tests(name)]
            others = [name for name in names if belongs_to_tests(name)]
            yield Repair(
                parents[0], commit, _checked(repository, [*diff, *code]), _checked(repository, [*diff, *others])
            )


def split_diff(before: Path, after: Path) -> tuple[str, str]:
    """The diff of two trees: of code, and of tests with their configuration."""
    with tempfile.TemporaryDirectory() as scratch:
        repository = Path(scratch)
        _checked(repository, ["init", "-q"])
        trees = []
        for tree in (before, after):
            place = {"GIT_DIR": f"{scratch}/.git", "GIT_WORK_TREE": str(tree)}
            _checked(repository, ["add", "-A", "-f", str(tree)], place)
            trees.append(_checked(repository, ["write-tree"], place).strip())
        names = _checked(repository, ["diff", "--name-only", "--no-renames", *trees]).splitlines()
        return _split(repository, trees[0], trees[1], names)


def _split(repository: Path, before: str, after: str, names: list[str]) -> tuple[str, str]:
    diff = ["diff", "--no-renames", "--full-index", "--binary", before, after, "--"]
    tests = [name for name in names if belongs_to_tests(name)]
    code = [name for name in names if not belongs_to_tests(name)]
    of_code, of_tests = (_checked(repository, [*diff, *part]) if part else "" for part in (code, tests))
    return of_code, of_tests


def _repository(url: str) -> Path:
    """A folder with the repository: the one named, or a clone in the cache."""
    if Path(url).is_dir():
        return Path(url).absolute()

    def make(target: Path) -> None:
        _checked(target, ["clone", "-q", "--mirror", url, "."])

    return cached("clones", digest(url), make)


def _git(url: str, *arguments: str) -> str:
    return _checked(_repository(url), list(arguments))


def _checked(repository: Path, arguments: list[str], env: dict[str, str] | None = None) -> str:
    done = run_git(["-c", "safe.directory=*", "-c", "core.quotepath=off", *arguments], repository, env=env)
    if done.returncode:
        raise SetupError(
            f"git {arguments[0]} failed in {repository}: {done.stderr.strip()[-200:] or 'no reason given'}"
        )
    return done.stdout
