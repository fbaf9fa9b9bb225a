"""What an agent has changed: read back from its sandbox, and laid on another tree without what is not its to change."""

from __future__ import annotations

import errno
import io
import re
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from skyrl_gym.envs.swe.instance import Instance
from skyrl_gym.envs.swe.patches import patched_files
from skyrl_gym.errors import GradeError
from skyrl_gym.sandbox import Sandbox

__all__ = [
    "MAX_ARCHIVE",
    "READ_S",
    "Changes",
    "belongs_to_tests",
    "changes_of",
    "files_of",
    "lay_on",
    "read_back",
    "taken_over",
    "unpacked",
]

Changes: TypeAlias = Mapping[str, bytes | None]
"""Path -> new content, or None for a file that was deleted."""

READ_S = 120.0
MAX_ARCHIVE = 256 * 1_048_576
_TEST_FOLDERS = frozenset({"test", "tests", "__tests__", "testdata"})
_CONFIGURATION = frozenset(
    {
        *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini"),
        *("setup.cfg", "pyproject.toml", "sitecustomize.py", "usercustomize.py"),
        "setup.py",  # graders of published images run it
    }
)
# Of other languages: what says how tests are run, often beside what a repair may have to change.
_BUILD = frozenset(
    {
        *("package.json", "Cargo.toml", "go.mod", "go.work", "pom.xml", "build.gradle", "build.gradle.kts"),
        *("CMakeLists.txt", "Makefile", "GNUmakefile", "makefile"),
    }
)
_TEST_NAME = re.compile(
    r"test_.*|.*_test\.\w+|.*\.(?:test|spec)\.\w+|.*Tests?\.(?:java|kt)|(?:jest|vitest|karma|\.mocharc|ava)\b.*\.\w+"
)
# sympy's own runner of tests; libraries that Go's tests bring along.
_RUNNER = re.compile(
    r"(?:.*/)?vendor/.*\.go|bin/test|sympy/testing/.*|sympy/utilities/(?:runtests|pytest|randtest)\.py"
)
_KEPT_BY_TOOLS = frozenset({".git", "__pycache__", ".pytest_cache", ".hypothesis"})
_COMPILED = (".pth", ".pyc", ".so")
# Entry points in them are plugins to pytest.
_METADATA = (".egg-info", ".dist-info")
# What stands in the way of a path that an agent made: a file for a folder, a name too long.
_IN_THE_WAY = frozenset({errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EILSEQ})


async def read_back(box: Sandbox, folder: str) -> dict[str, bytes] | None:
    """The regular files of a folder in a sandbox, read by a fresh process, not by the agent's shell.

    None when the agent has left nothing that can be read: too much of it, or so many processes that no other can
    be started.

    Raises:
        GradeError: reading did not end in time.
    """
    # Not the agent's stderr: a socket or an unreadable file is a warning there.
    command = f'tar -C "$0" -c --hard-dereference --exclude=./.git . 2>/dev/null | head -c {MAX_ARCHIVE + 1}'
    result = await box.exec(["bash", "-c", command, folder], timeout_s=READ_S, max_bytes=2 * MAX_ARCHIVE + 2)
    if result.status != "ok":
        raise GradeError(f"reading the repository took longer than {READ_S:g} s")
    return unpacked(result.output)


def unpacked(data: bytes) -> dict[str, bytes] | None:
    """The regular files of an archive; None when it is too large or none."""
    if len(data) > MAX_ARCHIVE:
        return None
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            return {_clean(m.name): archive.extractfile(m).read() for m in archive if m.isreg()}  # type: ignore[union-attr]
    except tarfile.TarError:
        return None


def files_of(tree: Path) -> dict[str, Path]:
    """The regular files of a tree by their relative path, git's own left out."""
    found = ((path.relative_to(tree), path) for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(name): path for name, path in found if name.parts[0] != ".git"}


def changes_of(tree: Path, held: Mapping[str, bytes]) -> Changes:
    """How the files held differ from those of a tree."""
    base = files_of(tree)
    changed: dict[str, bytes | None] = {
        path: data for path, data in held.items() if path not in base or base[path].read_bytes() != data
    }
    return changed | dict.fromkeys(path for path in base if path not in held)


def taken_over(instance: Instance, changes: Changes) -> Changes:
    """The changes that count: not those of tests or their configuration.

    A file that looks like a test but is repaired by the gold patch is code (`django/test/client.py`).
    """
    repaired, tested = patched_files(instance.patch), patched_files(instance.test_patch)

    def counts(path: str) -> bool:
        if _is_configuration(path) or path in tested or path in instance.tests:
            return False
        return path in repaired or not belongs_to_tests(path)

    return {path: data for path, data in changes.items() if counts(path)}


def belongs_to_tests(path: str) -> bool:
    """Whether a file is by its name a test, beside tests, or their configuration."""
    parts = PurePosixPath(path).parts
    is_test = _TEST_NAME.fullmatch(parts[-1]) is not None or bool(_TEST_FOLDERS & set(parts[:-1]))
    runs_tests = parts[-1] in _BUILD or _RUNNER.fullmatch(path) is not None
    return is_test or runs_tests or _is_configuration(path)


def lay_on(tree: Path, changes: Changes) -> None:
    """Makes the changes in a tree. What has no place there is left out, as is what would lead through a symlink."""
    root = tree.resolve()
    for path, data in sorted(changes.items(), key=lambda change: change[1] is not None):  # deletions first
        target = tree / path
        try:
            if target.parent.resolve().is_relative_to(root) and not target.is_symlink():
                _put(target, data)
        except OSError as error:
            if error.errno not in _IN_THE_WAY:
                raise


def _put(target: Path, data: bytes | None) -> None:
    if data is None:
        target.unlink(missing_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def _is_configuration(path: str) -> bool:
    """Also what could stand in for a module of Python's, or is not source at all."""
    parts = PurePosixPath(path).parts
    if parts[-1] in _CONFIGURATION or parts[-1].endswith(_COMPILED):
        return True
    if _KEPT_BY_TOOLS & set(parts) or any(part.endswith(_METADATA) for part in parts):
        return True
    return path.endswith(".py") and parts[0].removesuffix(".py") in sys.stdlib_module_names


def _clean(name: str) -> str:
    return str(PurePosixPath(name))
