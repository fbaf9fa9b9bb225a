"""Making repair tasks: bugs put into right code, and repairs found in a history. What a test notices is kept.

    python -m skyrl_gym.envs.swe.factory --seed 0 --train 42 --test 18

writes the shipped `data/train.jsonl` and `data/test.jsonl`, whose splits share no mutated function.
`skyrl tasks make-swe` makes tasks of any repository.
"""

from __future__ import annotations

import ast
import asyncio
import difflib
import hashlib
import json
import random
import re
import tempfile
import time
from collections.abc import AsyncIterator, Container, Iterable, Iterator
from pathlib import Path
from typing import Any

from skyrl_gym.envs.swe.changes import belongs_to_tests
from skyrl_gym.envs.swe.grading import run_tests
from skyrl_gym.envs.swe.history import MAX_FILES, Repair, repairs, split_diff
from skyrl_gym.envs.swe.index import download, find, unpack
from skyrl_gym.envs.swe.inject import Mutation, mutations
from skyrl_gym.envs.swe.origins import DATA, Origin, Testing, sdist_fields, shipped, shipped_packages
from skyrl_gym.envs.swe.patches import patched_files
from skyrl_gym.envs.swe.statements import statement
from skyrl_gym.envs.swe.vetting import REPEATS, Vetted, uses_up_memory, vet
from skyrl_gym.errors import InfraError, TaskError

__all__ = ["candidates", "generate_tasks", "inject_bugs", "make_task", "mine_repairs", "repair_between"]

MAX_BROKEN = 0.5  # a bug that fails more of the tests is too plain
# Those that the shipped tasks are made with: others would change what a seed draws.
SHIPPED_KINDS = ("comparison", "arithmetic", "boolean", "constant", "guard", "condition", "arguments", "returned")
# A bug may make tests hang: they have this many times as long as without it.
SLOWER = 20.0
LEAST_S = 20.0
MAX_SOURCES = 40  # files that bugs are put into, drawn by the seed


def candidates(origin: Origin, seed: int, kinds: Container[str] | None = None) -> list[tuple[str, str, Mutation]]:
    """(file, function, mutation) of a tree, of some kinds or all, shuffled by the seed."""
    draw = random.Random(f"{origin.name}/{seed}")
    sources = dict(_sources(origin))
    if len(sources) > MAX_SOURCES:
        sources = {name: sources[name] for name in sorted(draw.sample(sorted(sources), MAX_SOURCES))}
    found = [
        (name, function, mutation)
        for name, source in sources.items()
        for mutation in mutations(source)
        if (kinds is None or mutation.kind in kinds) and (function := _function_at(source, mutation.start))
    ]
    draw.shuffle(found)
    return found


async def make_task(
    origin: Origin, file: str, mutation: Mutation, timeout_s: float | None = None
) -> dict[str, Any] | None:
    """A row in SWE-bench's schema, or None when no test notices the bug, too many do, or they don't end in time."""
    source = (origin.tree / file).read_bytes().decode()
    row = _row(origin, file, source, mutation)
    report = await run_tests(origin.right(), {file: mutation.apply(source).encode()}, timeout_s)
    if not report.intact or uses_up_memory(report):
        return None
    failed = sorted(name for name, outcome in report.outcomes.items() if outcome == "failed")
    passed = sorted(name for name, outcome in report.outcomes.items() if outcome == "passed")
    if not failed or not passed or len(failed) > MAX_BROKEN * len(report.outcomes):
        return None
    text = statement(origin.name, failed, report, row["patch"])
    return {**row, "problem_statement": text, "FAIL_TO_PASS": failed, "PASS_TO_PASS": passed}


async def inject_bugs(origin: Origin, count: int, seed: int, repeats: int = REPEATS) -> AsyncIterator[Vetted]:
    """Up to `count` sound tasks of bugs that are put into a tree, and the unsound ones on the way.

    The same seed gives the same tasks.

    Raises:
        TaskError: tests do not pass without a bug either, or notice none.
    """
    limit = max(LEAST_S, SLOWER * await _seconds_of_tests(origin))
    used: set[tuple[str, str, str]] = set()
    for file, function, mutation in candidates(origin, seed):
        key = (file, function, mutation.kind)
        if key in used:
            continue
        row = await make_task(origin, file, mutation, limit)
        if row is None:
            continue
        used.add(key)
        found = await _vetted(row, origin.name, repeats)
        yield found
        count -= found.sound
        if count <= 0:
            return
    if not used:
        raise TaskError(f"the tests of {origin.name} notice none of the bugs that can be put into it")


async def _seconds_of_tests(origin: Origin) -> float:
    """How long the tests of right code take."""
    began = time.monotonic()
    report = await run_tests(origin.right(), {})
    if not report.intact or "passed" not in report.outcomes.values():
        said = " ".join(next((text for text in report.messages.values() if text), "there are none").split())
        raise TaskError(f"no test of {origin.name} passes as it is; are its requirements named? {said[-300:]}")
    return time.monotonic() - began


async def mine_repairs(origin: Origin, count: int, repeats: int = REPEATS) -> AsyncIterator[Vetted]:
    """Up to `count` sound tasks of a history's repairs, the newest first, and the unsound ones on the way.

    Raises:
        TaskError: the history has no repair.
    """
    repair = None
    for repair in repairs(str(origin.fields["git_url"])):
        found = await _vetted(_mined_row(origin, repair), origin.name, repeats, hidden=True)
        yield found
        count -= found.sound
        if count <= 0:
            return
    if repair is None:
        raise TaskError(f"no commit of {origin.name} changes code of Python and tests of it, {MAX_FILES} files at most")


async def repair_between(package: str, base: str, fixed: str, testing: Testing, repeats: int = REPEATS) -> Vetted:
    """The task to make the fixed version of a package on the index from the base version, whose code is the start.

    Raises:
        SetupError: the index does not give both.
    """
    before, after = await asyncio.to_thread(find, package, base), await asyncio.to_thread(find, package, fixed)
    with tempfile.TemporaryDirectory() as scratch:
        trees = Path(scratch) / "before", Path(scratch) / "after"
        for sdist, tree in zip((before, after), trees, strict=True):
            await asyncio.to_thread(unpack, download(sdist), tree)
        patch, test_patch = await asyncio.to_thread(split_diff, *trees)
        fields = testing.fields(trees[1])
    row = {
        **sdist_fields(before),
        **fields,
        "instance_id": f"{package}__{fixed}",
        "patch": patch,
        "test_patch": test_patch,
        "test_files": _test_files(test_patch) or fields["test_files"],
    }
    return await _vetted(row, package, repeats, hidden=True)


def _mined_row(origin: Origin, repair: Repair) -> dict[str, Any]:
    fields = {name: value for name, value in origin.fields.items() if name != "injected"}
    return {
        **fields,
        "instance_id": f"{origin.name}__{repair.commit[:12]}",
        "base_commit": repair.base,
        "patch": repair.patch,
        "test_patch": repair.test_patch,
        "test_files": _test_files(repair.test_patch) or fields["test_files"],
    }


def _test_files(test_patch: str) -> list[str]:
    """The files of tests that a diff changes."""
    return sorted(name for name in patched_files(test_patch) if re.search(r"(^|/)(test[^/]*|[^/]*_test)\.py$", name))


async def _vetted(row: dict[str, Any], name: str, repeats: int, *, hidden: bool = False) -> Vetted:
    try:
        return await vet({"problem_statement": "", **row}, name, repeats, hidden=hidden)
    except (TaskError, InfraError) as error:
        return Vetted(row, str(error))


def _sources(origin: Origin) -> Iterator[tuple[str, str]]:
    """The files that bugs can be put into: those of code that can be read."""
    code = origin.tree / str(origin.fields["pythonpath"])
    for path in sorted(code.rglob("*.py")):
        name = str(path.relative_to(origin.tree))
        if belongs_to_tests(name) or path.is_symlink():
            continue
        try:
            source = path.read_bytes().decode()
            ast.parse(source)
        except (SyntaxError, ValueError):
            continue
        yield name, source


def _row(origin: Origin, file: str, source: str, mutation: Mutation) -> dict[str, Any]:
    patch = "".join(
        difflib.unified_diff(
            mutation.apply(source).splitlines(keepends=True),
            source.splitlines(keepends=True),
            f"a/{file}",
            f"b/{file}",
        )
    )
    name = hashlib.sha256(patch.encode()).hexdigest()[:8]
    first = {"instance_id": f"{origin.name}__{mutation.kind}-{name}", "repo": origin.fields["repo"], "patch": patch}
    lists = {"test_patch": "", "problem_statement": "", "FAIL_TO_PASS": ["unknown"], "PASS_TO_PASS": []}
    return {**first, **lists, **{key: value for key, value in origin.fields.items() if key not in first}}


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
    sources = {package: iter(candidates(shipped(package), seed, SHIPPED_KINDS)) for package in packages}
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
            row = await make_task(shipped(package), file, mutation)
            if row is not None:
                used.add(key)
                return row
    return None


def _split_of(package: str, function: str) -> str:
    digest = hashlib.sha256(f"{package}/{function}".encode()).digest()
    return "test" if digest[0] % 3 == 0 else "train"


async def _write(split: str, count: int, seed: int) -> None:
    with (DATA / f"{split}.jsonl").open("w") as file:
        async for row in generate_tasks(shipped_packages(), split, count, seed):
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
