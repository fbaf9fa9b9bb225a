"""Unified diffs, applied and read by git."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from skyrl_gym.errors import SetupError, TaskError

__all__ = ["apply_patch", "patched_files", "run_git"]

GIT_S = 120.0
_ENVIRONMENT = {
    "GIT_AUTHOR_NAME": "skyrl",
    "GIT_AUTHOR_EMAIL": "skyrl@example.org",
    "GIT_AUTHOR_DATE": "2020-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "skyrl",
    "GIT_COMMITTER_EMAIL": "skyrl@example.org",
    "GIT_COMMITTER_DATE": "2020-01-01T00:00:00Z",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "LC_ALL": "C.UTF-8",
}


def run_git(
    arguments: Sequence[str], tree: Path, stdin: str = "", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs git in a tree, with no configuration, one author and one date, so that commits are reproducible.

    Raises:
        SetupError: git is not installed or does not end.
    """
    # The tree may lie inside another repository, which must not be found.
    own = {"PATH": os.environ.get("PATH", os.defpath), "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=tree,
            env={**_ENVIRONMENT, **own, **(env or {})},
            input=stdin.encode(errors="surrogateescape"),
            capture_output=True,
            timeout=GIT_S,
            check=False,
        )
    except FileNotFoundError:
        raise SetupError("git is not installed: sudo apt-get install git") from None
    except subprocess.TimeoutExpired:
        raise SetupError(f"git {arguments[0]} took longer than {GIT_S:g} s") from None
    # As bytes so far: text streams would turn the line ends of files into others.
    out, err = (data.decode(errors="surrogateescape") for data in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


def apply_patch(tree: Path, patch: str, *, reverse: bool = False) -> None:
    """Applies a unified diff to a tree.

    Raises:
        TaskError: it does not apply.
    """
    if not patch.strip():
        return
    text = patch if patch.endswith("\n") else f"{patch}\n"
    arguments = ["apply", "--whitespace=nowarn", *(["--reverse"] if reverse else []), "-"]
    done = run_git(arguments, tree, text)
    if done.returncode:
        raise TaskError(f"a patch does not apply to the task's tree: {done.stderr.strip()[:300]}")


def patched_files(patch: str) -> frozenset[str]:
    """The files that a diff names, old and new names alike."""
    names: set[str] = set()
    left_old = left_new = 0  # lines of the current hunk that are still to come
    for line in patch.splitlines():
        if left_old > 0 or left_new > 0:
            left_old -= line[:1] in ("-", " ", "")
            left_new -= line[:1] in ("+", " ", "")
        elif hunk := re.match(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@", line):
            left_old, left_new = (int(count) if count is not None else 1 for count in hunk.groups())
        elif name := re.match(r"(?:--- a/|\+\+\+ b/|rename (?:from|to) )([^\t]+)", line):
            names.add(name[1])
    return frozenset(names)
