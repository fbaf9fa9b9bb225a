"""Problem statements from what is seen from outside: which tests fail and how; nothing of where or why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from skyrl_gym.envs.swe.report import TestReport

__all__ = ["statement"]

SHOWN_FAILURES = 4
SHOWN_LINES = 6
LEAK = 12  # a shorter line of a repair may stand in a message by chance


def statement(name: str, failed: Sequence[str], report: TestReport, patch: str = "", *, hidden: bool = False) -> str:
    """What tests say that fail; lines that also stand in the repair are left out.

    Args:
        name: what has the bug.
        failed: ids of tests.
        report: of a run without the repair.
        patch: the repair.
        hidden: whoever reads it will not find these tests.
    """
    shown = failed[:SHOWN_FAILURES]
    secret = _added(patch)
    where = "tests that are not in the repository yet" if hidden else "its tests"
    lines = [f"`{name}` does not behave as {where} say.", ""]
    for test in shown:
        lines += [f"`{test}` fails:", "", *(f"    {line}" for line in _symptom(_message(report, test), secret)), ""]
    if len(failed) > len(shown):
        lines.append(f"{len(failed) - len(shown)} more tests fail.")
    return "\n".join(lines).rstrip() + "\n"


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
