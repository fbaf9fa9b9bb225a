"""An expert that repairs a task with its gold patch."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

from skyrl_gym.envs.swe.changes import Changes, changes_of, files_of
from skyrl_gym.envs.swe.instance import Instance, read_instance
from skyrl_gym.envs.swe.patches import apply_patch
from skyrl_gym.envs.swe.schemas import standard_row
from skyrl_gym.envs.swe.trees import base_tree, copy_tree
from skyrl_gym.messages import ToolCall
from skyrl_gym.tasks import Task

__all__ = ["gold_actions", "gold_changes"]


def gold_actions(task: Task) -> list[ToolCall]:
    """Rewrites each file that the gold patch changes, through the public tools alone, then submits.

    In an image, where the files can't be seen from here, git applies the patch.
    """
    instance = read_instance(Task(task.id, standard_row(task.data)))
    if instance.image:
        return [_apply(instance), ToolCall("submit")]
    changes = gold_changes(instance)
    calls = [call for path, data in changes.items() for call in _rewrite(path, data)]
    return [*calls, ToolCall("submit")]


def gold_changes(instance: Instance) -> Changes:
    """What the gold patch makes of the base tree.

    Raises:
        TaskError: it does not apply.
    """
    tree = base_tree(instance)
    with tempfile.TemporaryDirectory() as scratch:
        fixed = Path(scratch) / "tree"
        copy_tree(tree, fixed)
        apply_patch(fixed, instance.patch, reverse=instance.reversed)
        return changes_of(tree, {name: path.read_bytes() for name, path in files_of(fixed).items()})


def _apply(instance: Instance) -> ToolCall:
    mark = "END_OF_THE_PATCH"
    reverse = " --reverse" if instance.reversed else ""
    patch = instance.patch if instance.patch.endswith("\n") else f"{instance.patch}\n"
    return ToolCall("bash", {"command": f"git apply{reverse} --whitespace=nowarn - <<'{mark}'\n{patch}{mark}"})


def _rewrite(path: str, data: bytes | None) -> list[ToolCall]:
    remove = ToolCall("bash", {"command": f"rm -f -- {shlex.quote(path)}"})
    if data is None:
        return [remove]
    text = data.decode(errors="surrogateescape")
    return [remove, ToolCall("edit", {"command": "create", "path": path, "file_text": text})]
