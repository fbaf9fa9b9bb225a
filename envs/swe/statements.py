"""Problem statements from what is seen from outside: which tests fail and how; nothing of where or why."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence

from skyrl_gym.envs.swe.instance import Instance
from skyrl_gym.envs.swe.patches import apply_patch
from skyrl_gym.envs.swe.report import TestReport
from skyrl_gym.envs.swe.store import scratch_folder
from skyrl_gym.envs.swe.trees import base_tree, copy_tree

__all__ = ["source_of", "statement"]

SHOWN_FAILURES = 4
SHOWN_LINES = 6
MOST_LINES = 40  # of a test whose source is shown
LEAK = 12  # a shorter line of a repair may stand in a message by chance


def statement(
    name: str, failed: Sequence[str], report: TestReport, patch: str = "", example: str = "", *, hidden: bool = False
) -> str:
    """What tests say that fail; lines that also stand in the repair are left out.

    Args:
        name: what has the bug.
        failed: ids of tests.
        report: of a run without the repair.
        patch: the repair.
        example: the source of the first that fails, for whoever can't look it up.
        hidden: whoever reads it will not find these tests.
    """
    shown = failed[:SHOWN_FAILURES]
    secret = _added(patch)
    code = [line for line in example.splitlines() if not any(piece in line for piece in secret)]
    where = "tests that are not in the repository yet" if hidden else "its tests"
    lines = [f"`{name}` does not behave as {where} say.", ""]
    for test in shown:
        lines += [f"`{test}` fails:", "", *(f"    {line}" for line in _symptom(_message(report, test), secret)), ""]
        if test == failed[0] and code:
            lines += ["It is:", "", *(f"    {line}".rstrip() for line in code), ""]
    if len(failed) > len(shown):
        lines.append(f"{len(failed) - len(shown)} more tests fail.")
    return "\n".join(lines).rstrip() + "\n"


def source_of(instance: Instance, test: str) -> str:
    """The function of a test, as it is once the task's tests are there; empty if it is long, or not to be found."""
    file, *names = re.sub(r"\[.*", "", test, flags=re.DOTALL).split("::")
    with scratch_folder() as scratch:
        tree = scratch / "tree"
        copy_tree(base_tree(instance), tree)
        apply_patch(tree, instance.test_patch)
        data = (tree / file).read_bytes() if (tree / file).is_file() else b""
    node: ast.AST | None = ast.parse(data)
    for name in names:
        inner = ast.iter_child_nodes(node) if node else ()
        node = next((child for child in inner if getattr(child, "name", None) == name), None)
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return ""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    lines = data.decode(errors="replace").split("\n")[first - 1 : node.end_lineno]
    return textwrap.dedent("\n".join(lines)).replace("\r", "") if len(lines) <= MOST_LINES else ""


def _message(report: TestReport, test: str) -> str:
    """A test that is not there has its file's message."""
    return report.messages.get(test) or report.messages.get(test.partition("::")[0], "")


def _symptom(message: str, secret: frozenset[str]) -> Iterator[str]:
    lines = [line for line in message.splitlines() if line.strip()]
    lines = [line for line in lines if not any(piece in line for piece in secret)]
    # Addresses differ from run to run.
    return (re.sub(r"0x[0-9a-f]{6,}", "0x...", line)[:200] for line in lines[:SHOWN_LINES] or ["no message"])


def _added(patch: str) -> frozenset[str]:
    added = (line[1:].strip() for line in patch.splitlines() if line[:1] == "+" and line[:3] != "+++")
    return frozenset(line for line in added if len(line) > LEAK)
