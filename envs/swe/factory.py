"""Making repair tasks from a package and its tests: inject, run, keep what a test notices.

    python -m skyrl_gym.envs.swe.factory --seed 0 --train 42 --test 18

writes the shipped `data/train.jsonl` and `data/test.jsonl`. The two splits share no mutated function.
"""

from __future__ import annotations

import ast
import asyncio
import difflib
import hashlib
import json
import random
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

from skyrl_gym.envs.swe.changes import belongs_to_tests
from skyrl_gym.envs.swe.grading import TestReport, run_tests
from skyrl_gym.envs.swe.inject import Mutation, mutations
from skyrl_gym.envs.swe.instance import read_instance
from skyrl_gym.tasks import Task

__all__ = ["candidates", "generate_tasks", "make_task"]

DATA = Path(__file__).parent / "data"
MAX_BROKEN = 0.5  # a bug that fails more of the tests is too plain
SHOWN_FAILURES = 4


def candidates(package: str, seed: int) -> list[tuple[str, str, Mutation]]:
    """(file, function, mutation) of a shipped package, shuffled by the seed."""
    root = DATA / "packages" / package
    found = [
        (str(path.relative_to(root)), function, mutation)
        for path in sorted(root.rglob("*.py"))
        if not belongs_to_tests(str(path.relative_to(root)))
        for mutation in mutations(path.read_text())
        if (function := _function_at(path.read_text(), mutation.start))
    ]
    random.Random(f"{package}/{seed}").shuffle(found)
    return found


async def make_task(package: str, file: str, mutation: Mutation) -> dict[str, Any] | None:
    """A row in SWE-bench's schema, or None when no test notices the bug, or too many do."""
    source = (DATA / "packages" / package / file).read_text()
    row = _row(package, file, source, mutation)
    report = await run_tests(read_instance(Task.from_row(row)), {})
    if not report.intact:
        return None
    failed = sorted(name for name, outcome in report.outcomes.items() if outcome == "failed")
    passed = sorted(name for name, outcome in report.outcomes.items() if outcome == "passed")
    if not failed or not passed or len(failed) > MAX_BROKEN * len(report.outcomes):
        return None
    statement = _statement(package, failed, report)
    return {**row, "problem_statement": statement, "FAIL_TO_PASS": failed, "PASS_TO_PASS": passed}


def _row(package: str, file: str, source: str, mutation: Mutation) -> dict[str, Any]:
    patch = "".join(
        difflib.unified_diff(
            mutation.apply(source).splitlines(keepends=True),
            source.splitlines(keepends=True),
            f"a/{file}",
            f"b/{file}",
        )
    )
    name = hashlib.sha256(patch.encode()).hexdigest()[:8]
    return {
        "instance_id": f"{package}__{mutation.kind}-{name}",
        "repo": f"skyrl/{package}",
        "patch": patch,
        "test_patch": "",
        "problem_statement": "",
        "FAIL_TO_PASS": ["unknown"],
        "PASS_TO_PASS": [],
        "test_files": ["tests"],
        "pythonpath": ".",
    }


def _statement(package: str, failed: list[str], report: TestReport) -> str:
    """What is seen from outside: which tests fail and how; nothing of where or why."""
    shown = failed[:SHOWN_FAILURES]
    lines = [f"`{package}` does not behave as its tests say.", ""]
    for name in shown:
        lines += [f"`{name}` fails:", "", *(f"    {line}" for line in _symptom(report.messages.get(name, ""))), ""]
    if len(failed) > len(shown):
        lines.append(f"{len(failed) - len(shown)} more tests fail.")
    return "\n".join(lines).rstrip() + "\n"


def _symptom(message: str) -> Iterator[str]:
    lines = [line for line in message.splitlines() if line.strip()]
    # Addresses differ from run to run.
    return (re.sub(r"0x[0-9a-f]{6,}", "0x...", line)[:200] for line in lines[:6] or ["no message"])


def _function_at(source: str, offset: int) -> str:
    """The dotted name of the innermost function around an offset; empty outside functions."""
    line = source.count("\n", 0, offset) + 1
    names: list[str] = []
    node: ast.AST = ast.parse(source)
    while True:
        inner = [
            child
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.FunctionDef | ast.ClassDef) and child.lineno <= line <= (child.end_lineno or 0)
        ]
        if not inner:
            return ".".join(names) if isinstance(node, ast.FunctionDef) else ""
        node = inner[0]
        names.append(node.name)


async def generate_tasks(packages: Iterable[str], split: str, count: int, seed: int) -> AsyncIterator[dict[str, Any]]:
    """Up to `count` tasks of one split, the packages in turn; a function belongs to one split by its name's hash.

    What a package gives does not depend on the other packages.
    """
    sources = {package: iter(candidates(package, seed)) for package in packages}
    used: set[tuple[str, str, str]] = set()
    made = 0
    while made < count and sources:
        for package in list(sources)[: count - made]:
            row = await _next_row(package, sources[package], split, used)
            if row is None:
                del sources[package]
            else:
                made += 1
                yield row


async def _next_row(
    package: str, source: Iterator[tuple[str, str, Mutation]], split: str, used: set[tuple[str, str, str]]
) -> dict[str, Any] | None:
    for file, function, mutation in source:
        key = (package, function, mutation.kind)
        if _split_of(package, function) == split and key not in used:
            row = await make_task(package, file, mutation)
            if row is not None:
                used.add(key)
                return row
    return None


def _split_of(package: str, function: str) -> str:
    digest = hashlib.sha256(f"{package}/{function}".encode()).digest()
    return "test" if digest[0] % 3 == 0 else "train"


async def _write(split: str, count: int, seed: int) -> None:
    packages = sorted(path.name for path in (DATA / "packages").iterdir())
    with (DATA / f"{split}.jsonl").open("w") as file:
        async for row in generate_tasks(packages, split, count, seed):
            file.write(json.dumps(row) + "\n")
            print(split, row["instance_id"], flush=True)  # noqa: T201


def _main() -> None:
    import argparse

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=int, default=42)
    parser.add_argument("--test", type=int, default=18)
    options = parser.parse_args()
    for split, count in (("train", options.train), ("test", options.test)):
        asyncio.run(_write(split, count, options.seed))


if __name__ == "__main__":
    _main()
