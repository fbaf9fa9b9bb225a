"""The tree that an agent starts from: a shipped package with a bug, or the base version of a real one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from importlib.resources import as_file, files
from pathlib import Path

from skyrl_gym.envs.swe.history import export
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
LAYOUT = "2"  # goes up when trees are made in another way: those in the cache are then made anew


def base_tree(instance: Instance) -> Path:
    """The repository as the agent finds it, its whole history one commit; cached.

    Raises:
        SetupError: the source can't be fetched.
        TaskError: the row doesn't fit its source.
    """
    if sdist := instance.sdist:
        return _made_tree(instance, sdist.sha256, lambda target: unpack(download(sdist), target))
    if commit := instance.git:
        return _made_tree(instance, f"{commit.url} {commit.commit}", lambda target: export(commit, target))
    return _shipped_tree(instance)


def copy_tree(tree: Path, target: Path) -> None:
    """Copies a tree without its history."""
    history = str(tree)  # a `.git` in a folder below is a file of the tree's
    shutil.copytree(tree, target, symlinks=True, ignore=lambda folder, _: [".git"] if folder == history else [])


def _made_tree(instance: Instance, source: str, fill: Callable[[Path], None]) -> Path:
    def make(target: Path) -> None:
        fill(target)
        if instance.injected:
            apply_patch(target, instance.patch, reverse=not instance.reversed)
        _commit(target)

    bug = instance.patch if instance.injected else ""
    return cached("trees", digest(source, bug, LAYOUT), make)


def _shipped_tree(instance: Instance) -> Path:
    name = instance.repo.removeprefix(SHIPPED)
    with as_file(files("skyrl_gym.envs.swe") / "data" / "packages") as packages:
        shipped = sorted(folder.name for folder in packages.iterdir())
        if instance.repo == name or name not in shipped:
            raise TaskError(
                f"task {instance.id}: no source for {instance.repo!r}: a row names a shipped package "
                f"({', '.join(SHIPPED + known for known in shipped)}), or has package, base_version and sdist_base, "
                "git_url and base_commit, or an image"
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
