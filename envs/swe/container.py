"""Tasks whose repository is in a container image: what an agent gets of it, what it changed, and how it is graded.

The agent's container holds one commit: no later history, and nothing that only graders need. What it says of its
files is a proposal; it is laid on a fresh container of the same image, without tests and their configuration.
"""

from __future__ import annotations

import asyncio
import io
import re
import secrets
import shlex
import tarfile
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import PurePosixPath

from skyrl_gym.envs.swe.changes import MAX_ARCHIVE, READ_S, Changes, belongs_to_tests, unpacked
from skyrl_gym.envs.swe.diffs import diff
from skyrl_gym.envs.swe.go_tests import go_log, runs_go
from skyrl_gym.envs.swe.instance import Image, Instance
from skyrl_gym.envs.swe.logs import (
    START,
    Outcomes,
    as_listed,
    confirmed,
    is_told_by_runner,
    log_parser,
    reads_pytest,
    runner_of,
    section,
    suite_ran,
)
from skyrl_gym.envs.swe.report import (
    CANARY,
    Order,
    TestReport,
    announced,
    program,
    read_report,
    watch,
    without_reports,
)
from skyrl_gym.envs.swe.run_tests import PLUGIN
from skyrl_gym.envs.swe.store import digest
from skyrl_gym.errors import GradeError, SetupError, TaskError
from skyrl_gym.sandbox import ExecResult, Limits, Preparation, Sandbox, SandboxPool, SandboxSpec, open_sandbox

__all__ = ["Container", "open_container", "test_in_container"]

SETUP_S = 600.0
TESTS_S = 1_800.0
MAX_LOG = 64 * 1_048_576
LIMITS = Limits(memory_mb=8_192, processes=2_048, disk_mb=16_384)
ACTIVATION = "/tmp/.activation"
# Every bash reads it: also one that a fresh process, not the agent's shell, starts.
_ENVIRONMENT = {
    "BASH_ENV": ACTIVATION,
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}
_ACTIVATE = 'if [ -z "$TASK_ACTIVE" ]; then\nexport TASK_ACTIVE=1\n{}\nfi\n'
_APPLY = 'cd "$1" && shift && git apply --whitespace=nowarn "$@" -'
# One commit in place of the history; caches of packages could hold the repaired version.
_CLEAN = r"""
set -e
cd "$1"
shift
IFS=
for pattern in "$@"; do rm -rf -- $pattern; done
find . -name .git -prune -exec rm -rf {} +
rm -rf ~/.cache/pip ~/.cache/uv ~/.cargo/registry/cache ~/.npm/_cacache
git init -q . 2>/dev/null
git symbolic-ref HEAD refs/heads/main
mkdir -p .git/info  # git's templates may be missing
printf '%s\n' .venv >> .git/info/exclude
git add -A
export GIT_AUTHOR_DATE=2020-01-01T00:00:00Z GIT_COMMITTER_DATE=2020-01-01T00:00:00Z
git -c gc.auto=0 -c user.name=skyrl -c user.email=skyrl@example.org commit -q --no-verify -m 'Initial commit'
rm -rf .git/logs
git reflog expire --all 2>/dev/null || :
"""
# Hashes of the files that git would not ignore, and of those named on stdin. Its own git folder, not the agent's.
_HASHES = r"""
cd "$1" || exit 9
export GIT_DIR="$(mktemp -d)" GIT_WORK_TREE="$1"
git init -q > /dev/null 2>&1
{ cat; git ls-files -z -o --exclude-standard -x .venv; } | sort -zu |
xargs -0 sh -c 'for f; do if [ -f "$f" ] && [ ! -L "$f" ]; then printf "%s\0" "$f"; fi; done' sh |
xargs -0 -r sha256sum -z --
"""
_FETCH = f'cd "$1" && tar -c --hard-dereference --null -T - 2>/dev/null | head -c {MAX_ARCHIVE + 1}'
# `cp` keeps the modes of files that are there.
_LAY = 'put="$(mktemp -d)" && tar -x -C "$put" && cp -r --no-preserve=mode "$put/." "$1/"'
_UNWATCHED = 'cd "$1" && bash "$2/script.sh" 2>&1'
_BESIDE = 'export PYTHONPATH="$2${PYTHONPATH:+:$PYTHONPATH}" && '
# Without a seed, sympy's runner would begin another process.
_SEEDED = 'export PYTHONHASHSEED="${PYTHONHASHSEED:-0}" && '
_WATCHED = f'export PYTEST_ADDOPTS="-p {PLUGIN} ${{PYTEST_ADDOPTS:-}}" && {_BESIDE}{_UNWATCHED}'


@dataclass(frozen=True)
class Container:
    """An agent's sandbox with a task's repository; `base` are its files' hashes before the agent came."""

    box: Sandbox
    image: Image
    python: str | None
    base: Mapping[str, str]

    @property
    def repository(self) -> str:
        """The repository's folder."""
        return self.image.repository

    def moved(self, box: Sandbox) -> Container:
        """The same in another sandbox, a copy of this one."""
        return replace(self, box=box)

    async def changes(self) -> Changes | None:
        """What the agent has changed; None when its repository can't be read back.

        Raises:
            GradeError: reading did not end in time.
        """
        names = "".join(f"{name}\0" for name in self.base).encode(errors="surrogateescape")
        held = await _hashes(self.box, self.image, names)
        if held is None:
            return None
        changed = sorted(name for name, found in held.items() if self.base.get(name) != found)
        contents = await _fetch(self.box, self.image, changed)
        if contents is None:
            return None
        gone = (name for name in self.base if name not in held and not self._is_hidden(name))
        return {**contents, **dict.fromkeys(gone)}

    def _is_hidden(self, name: str) -> bool:
        path = str(PurePosixPath(self.image.repository) / name)
        return any(fnmatch(path, pattern) or path.startswith(f"{pattern}/") for pattern in self.image.hidden)


async def open_container(instance: Instance, pool: SandboxPool) -> Container:
    """A container as the agent gets it; others of the same task begin with what was prepared for the first.

    Raises:
        SetupError: the image doesn't hold what the row says.
        SandboxError: there is no container.
        TaskError, MissingDependency: the task could not be graded.
    """
    image = _image(instance)
    await asyncio.to_thread(_check_gradable, instance)
    prepared = Preparation(digest(repr(instance)), partial(_prepare_for_agent, instance))
    box, (python, base) = await pool.take_prepared(_spec(image), prepared, "docker")
    return Container(box, image, python, base)


async def _prepare_for_agent(instance: Instance, box: Sandbox) -> tuple[str | None, Mapping[str, str]]:
    """Leaves one commit, and nothing that only graders need: the image's Python, and the hashes of the files."""
    image = _image(instance)
    await _prepare(box, instance)
    cleaned = await box.exec(["bash", "-c", _CLEAN, "bash", image.repository, *image.hidden], timeout_s=SETUP_S)
    if cleaned.code != 0:
        raise SetupError(f"{image.name}: the repository could not be cleaned: {cleaned.text.strip()[-300:]}")
    base = await _hashes(box, image, b"")
    if base is None:
        raise SetupError(f"{image.name}: the files of {image.repository} could not be read")
    return await _python(box), base


async def test_in_container(instance: Instance, changes: Changes) -> TestReport:
    """The report of the task's tests on a fresh container with the changes.

    Raises:
        GradeError: the tests could not even be begun.
        SandboxError: there is no container.
        TaskError: the task's own test patch does not apply.
    """
    image = _image(instance)
    read = await asyncio.to_thread(log_parser, image.log_parser, image.eval_script)  # importing one takes seconds
    report = None
    if runs_go(image.eval_script):
        async with _changed(instance, changes) as (box, before):
            log = await go_log(box, image)
            report = None if log is None else _read_log(log, image, read)
    if report is None:
        async with _changed(instance, changes) as (box, before):
            if image.eval_script:
                report = await _run_script(box, image, read)
            else:
                await _apply(box, image, instance.test_patch)
                report = await _run_pytest(box, instance)
    return replace(report, patch=await asyncio.to_thread(diff, before, changes))


@asynccontextmanager
async def _changed(instance: Instance, changes: Changes) -> AsyncIterator[tuple[Sandbox, Mapping[str, bytes]]]:
    """A fresh container with the changes, and the files that they replaced."""
    image = _image(instance)
    async with await open_sandbox(_spec(image), "docker") as box:
        await _prepare(box, instance)
        before = await _fetch(box, image, changes)
        await _lay_on(box, image, changes)
        yield box, before or {}


test_in_container.__test__ = False  # type: ignore[attr-defined]  # not a test case


def _check_gradable(instance: Instance) -> None:
    """An agent's work must not be found to be in vain at its end."""
    image = _image(instance)
    log_parser(image.log_parser, image.eval_script)
    if not image.eval_script and (other := next((name for name in instance.listed if "::" not in name), None)):
        raise TaskError(
            f"task {instance.id}: {other!r} is no test of pytest's, and the row has no eval_script that runs it"
        )


async def _prepare(box: Sandbox, instance: Instance) -> None:
    image = _image(instance)
    await box.write(ACTIVATION, _ACTIVATE.format(image.activate or ":").encode())
    # The first shell may be older than the file.
    await (await box.shell()).run(f". {ACTIVATION}", timeout_s=SETUP_S)
    if instance.injected:
        await _apply(box, image, instance.patch, reverse=not instance.reversed)


async def _apply(box: Sandbox, image: Image, patch: str, *, reverse: bool = False) -> None:
    if not patch.strip():
        return
    text = patch if patch.endswith("\n") else f"{patch}\n"
    data = text.encode(errors="surrogateescape")
    command = ["bash", "-c", _APPLY, "bash", image.repository, *(["--reverse"] if reverse else [])]
    done = await box.exec(command, stdin=data, timeout_s=SETUP_S)
    if done.code != 0:
        raise TaskError(f"a patch does not apply to {image.repository} of {image.name}: {done.text.strip()[:300]}")


async def _python(box: Sandbox) -> str | None:
    found = await box.exec(["bash", "-c", "command -v python3 || command -v python"], timeout_s=SETUP_S)
    return found.text.strip().splitlines()[-1] if found.code == 0 else None


async def _hashes(box: Sandbox, image: Image, names: bytes) -> dict[str, str] | None:
    result = await _read(box, _HASHES, image, names)
    found = {}
    for entry in result.output.split(b"\0"):
        digest, gap, name = entry.decode(errors="surrogateescape").partition("  ")
        if gap and len(digest) == 64:
            found[name.removeprefix("./")] = digest
    return found or None


async def _fetch(box: Sandbox, image: Image, names: Iterable[str]) -> dict[str, bytes] | None:
    """The files that there are of those named; None when they can't be read."""
    wanted = "".join(f"./{name}\0" for name in names).encode(errors="surrogateescape")
    return unpacked((await _read(box, _FETCH, image, wanted)).output) if wanted else {}


async def _read(box: Sandbox, script: str, image: Image, names: bytes) -> ExecResult:
    # Without the task's tools: a repository's own could stand before those of the system.
    command = ["bash", "-c", script, "bash", image.repository]
    result = await box.exec(
        command, stdin=names, timeout_s=READ_S, max_bytes=2 * MAX_ARCHIVE + 2, env={"BASH_ENV": "/dev/null"}
    )
    if result.status != "ok":
        raise GradeError(f"reading {image.repository} took longer than {READ_S:g} s")
    return result


async def _lay_on(box: Sandbox, image: Image, changes: Changes) -> None:
    gone = [str(PurePosixPath(image.repository) / name) for name, data in changes.items() if data is None]
    if gone:
        await box.exec(
            ["xargs", "-0", "rm", "-f", "--"], stdin="\0".join(gone).encode(errors="surrogateescape"), timeout_s=READ_S
        )
    held = {name: data for name, data in changes.items() if data is not None}
    if held:
        data = await asyncio.to_thread(_packed, held)
        await box.exec(["bash", "-c", _LAY, "bash", image.repository], stdin=data, timeout_s=READ_S)


def _packed(contents: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


async def _run_pytest(box: Sandbox, instance: Instance) -> TestReport:
    """pytest by our own program, with the image's Python, on the files of the listed tests."""
    image = _image(instance)
    python = await _python(box)
    if python is None:
        raise GradeError(f"{image.name} has no Python")
    order = Order.of(instance, image.repository, ())
    await box.write(f"{image.repository}/{order.canary}", CANARY.encode())
    line = shlex.join([python, "-s", "-c", program()])
    before = await _test_files(box, image)
    result = await box.exec(
        ["bash", "-c", f"cd / && exec {line}"], stdin=order.stdin, timeout_s=TESTS_S, max_bytes=MAX_LOG
    )
    report = read_report(result, order.nonce)
    after = await _test_files(box, image)
    return report if before.items() <= after.items() else TestReport(intact=False)


async def _run_script(box: Sandbox, image: Image, read: Callable[[str], Outcomes]) -> TestReport:
    """The script of the data set; where its runner can be watched, the runner's own word counts, not the log."""
    nonce, folder = secrets.token_hex(16), f"/tmp/{secrets.token_hex(8)}"
    await box.write(f"{folder}/script.sh", image.eval_script.encode())
    command = _UNWATCHED
    if reads_pytest(image.log_parser):
        command = _WATCHED
        await box.write(f"{folder}/{PLUGIN}.py", program().encode())
    elif runner := runner_of(image.eval_script):
        command = (_SEEDED if runner == "sympy" else "") + _BESIDE + _UNWATCHED
        await box.write(f"{folder}/sitecustomize.py", watch(runner).encode())
        await box.write(f"{folder}/skyrl_tests.py", program().encode())
    if command != _UNWATCHED:
        await box.write(f"{folder}/nonce", nonce.encode())
    result = await box.exec(
        ["bash", "-c", command, "bash", image.repository, folder], timeout_s=TESTS_S, max_bytes=MAX_LOG
    )
    alone = is_told_by_runner(image.log_parser, image.eval_script)
    if not announced(result, nonce):
        if alone:
            raise GradeError(f"the tests could not be begun ({result.status}): {result.text.strip()[-500:]}")
        return _read_log(result, image, read)
    report = read_report(result, nonce, codes=(0, 1))
    if reads_pytest(image.log_parser) or alone or not report.intact:
        return replace(report, outcomes=as_listed(report.outcomes, image.log_parser))
    logged = _read_log(without_reports(result, nonce), image, read)
    return replace(logged, outcomes=confirmed(logged.outcomes, report.outcomes))


def _read_log(result: ExecResult, image: Image, read: Callable[[str], Outcomes]) -> TestReport:
    """What a log tells, unless it contradicts itself: a run that failed without a test that failed."""
    log = result.text
    if START in image.eval_script and START not in log:
        raise GradeError(f"the tests could not be begun ({result.status}): {log.strip()[-500:]}")
    outcomes = as_listed(read(section(log)), image.log_parser)
    status = re.search(r">>>>> Test Exit Code:\s*(-?\d+)", log)
    contradicts = status is not None and status[1] != "0" and "failed" not in outcomes.values()
    ran = suite_ran(log) if image.fail_only else bool(outcomes)
    if result.status != "ok" or not ran or contradicts:
        return TestReport(intact=False, messages={"": log[-2_000:]})
    return TestReport(True, outcomes)


async def _test_files(box: Sandbox, image: Image) -> dict[str, str]:
    """The hashes of tests and their configuration, which code under test could rewrite."""
    found = await _hashes(box, image, b"") or {}
    return {name: digest for name, digest in found.items() if belongs_to_tests(name)}


def _image(instance: Instance) -> Image:
    if instance.image is None:
        raise TaskError(f"task {instance.id} has no image")
    return instance.image


def _spec(image: Image) -> SandboxSpec:
    return SandboxSpec(image=image.name, workdir=image.repository, env=_ENVIRONMENT, limits=LIMITS)
