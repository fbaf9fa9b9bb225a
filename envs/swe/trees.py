"""The tree that an agent starts from: a shipped package with a bug, or the base version of a real one."""

from __future__ import annotations

import os
import shutil
from importlib.resources import as_file, files
from pathlib import Path

from skyrl_gym.envs.swe.index import download, unpack
from skyrl_gym.envs.swe.instance import Instance
from skyrl_gym.envs.swe.patches import apply_patch, run_git
from skyrl_gym.envs.swe.store import cached, digest, digest_of_folder
from skyrl_gym.errors import SetupError, TaskError

__all__ = ["REPOSITORY", "base_tree", "copy_tree"]

REPOSITORY = "/work"
"""Where a repository is, in every sandbox."""
SHIPPED = "skyrl/"
EPOCH = 1_577_836_800  # 2020-01-01
LAYOUT = "1"  # goes up when trees are made in another way: those in the cache are then made anew


def base_tree(instance: Instance) -> Path:
    """The repository as the agent finds it, its whole history one commit; cached.

    Raises:
        SetupError: the source can't be fetched.
        TaskError: the row doesn't fit its source.
    """
    return _sdist_tree(instance) if instance.sdist else _shipped_tree(instance)


def copy_tree(tree: Path, target: Path) -> None:
    """Copies a tree without its history."""
    history = str(tree)  # a `.git` in a folder below is a file of the tree's
    shutil.copytree(tree, target, symlinks=True, ignore=lambda folder, _: [".git"] if folder == history else [])


def _sdist_tree(instance: Instance) -> Path:
    assert instance.sdist is not None
    sdist = instance.sdist

    def make(target: Path) -> None:
        unpack(download(sdist), target)
        _commit(target)

    return cached("trees", digest(sdist.sha256, LAYOUT), make)


def _shipped_tree(instance: Instance) -> Path:
    name = instance.repo.removeprefix(SHIPPED)
    with as_file(files("skyrl_gym.envs.swe") / "data" / "packages") as packages:
        shipped = sorted(folder.name for folder in packages.iterdir())
        if instance.repo == name or name not in shipped:
            raise TaskError(
                f"task {instance.id}: no source for {instance.repo!r}: a row either names a shipped package "
                f"({', '.join(SHIPPED + known for known in shipped)}) or has package, base_version and sdist_base"
            )

        def make(target: Path) -> None:
            ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(packages / name, target, dirs_exist_ok=True, ignore=ignore)
            apply_patch(target, instance.patch, reverse=True)
            _commit(target)

        return cached("trees", digest_of_folder(packages / name, instance.patch, LAYOUT), make)


def _commit(tree: Path) -> None:
    """One commit, and nothing else that git or the files' times could tell."""
    shutil.rmtree(tree / ".git", ignore_errors=True)
    for path in (tree, *tree.rglob("*")):
        os.utime(path, (EPOCH, EPOCH), follow_symlinks=False)
    for arguments in (["init", "-q", "-b", "main"], ["add", "-A", "-f"], ["commit", "-q", "-m", "Initial commit"]):
        done = run_git(arguments, tree)
        if done.returncode:
            raise SetupError(f"git {arguments[0]} failed: {done.stderr.strip()[-200:]}")
