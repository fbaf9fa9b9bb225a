"""An expert that repairs a task with its gold patch, through the public tools alone."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from skyrl_gym.envs.swe.instance import read_instance
from skyrl_gym.envs.swe.prepare import apply_patch, base_tree
from skyrl_gym.messages import ToolCall
from skyrl_gym.tasks import Task

__all__ = ["gold_actions"]


def gold_actions(task: Task) -> list[ToolCall]:
    """Rewrites each file that the gold patch changes, then submits. Binary files are not supported."""
    instance = read_instance(task)
    tree = base_tree(instance)
    with tempfile.TemporaryDirectory() as scratch:
        fixed = Path(scratch) / "tree"
        shutil.copytree(tree, fixed, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        apply_patch(fixed, instance.patch)
        touched = [line[6:].split("\t")[0] for line in instance.patch.splitlines() if line.startswith("+++ b/")]
        writes = [_rewrite(path, (fixed / path).read_bytes().decode()) for path in touched]
    return [call for pair in writes for call in pair] + [ToolCall("submit")]


def _rewrite(path: str, text: str) -> tuple[ToolCall, ToolCall]:
    remove = ToolCall("bash", {"command": f"rm -f '{path}'"})
    return remove, ToolCall("edit", {"command": "create", "path": path, "file_text": text})
