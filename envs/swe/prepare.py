"""Preparing a task on the host, once: the tree that the agent starts from, and the packages it needs.

Both are cached by content and made beside their place, then moved there, so that a reader never sees half of
one and two writers don't harm each other. The fixed version of a package is never fetched: it is the answer.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from skyrl_gym.cache import cache_dir
from skyrl_gym.envs.swe.instance import Instance, Sdist
from skyrl_gym.errors import MissingDependency, SetupError, TaskError
from skyrl_gym.sandbox import Mount, readable_by_sandbox

__all__ = ["REPOSITORY", "Runtime", "apply_patch", "base_tree", "runtime"]

DOWNLOAD_S = 300
REPOSITORY = "/work"
PACKAGES = "/opt/packages"
METADATA = "/opt/metadata"
# Everything that pytest needs to run, from this environment: the shipped packages then need no network.
_PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
_COMMIT = {
    "GIT_AUTHOR_NAME": "skyrl",
    "GIT_AUTHOR_EMAIL": "skyrl@example.org",
    "GIT_AUTHOR_DATE": "2020-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "skyrl",
    "GIT_COMMITTER_EMAIL": "skyrl@example.org",
    "GIT_COMMITTER_DATE": "2020-01-01T00:00:00Z",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "PATH": os.defpath,
}


def base_tree(instance: Instance) -> Path:
    """The repository as the agent finds it, its whole history one commit.

    Raises:
        SetupError: the source can't be fetched.
        TaskError: the row doesn't fit its source.
    """
    source = instance.sdist.sha256 if instance.sdist else _digest(instance.repo, instance.patch)

    def make(target: Path) -> None:
        if instance.sdist:
            _unpack(_download(instance.sdist), target)
        else:
            _copy_package(instance.repo, target)
            apply_patch(target, instance.patch, reverse=True)
        _commit(target)

    return _cached("trees", source[:24], make)


@dataclass(frozen=True)
class Runtime:
    """What a sandbox needs to run a repository: the interpreter, mounts, and where packages are imported from."""

    python: str
    mounts: tuple[Mount, ...]
    paths: tuple[str, ...]


def runtime(instance: Instance) -> Runtime:
    """The interpreter and packages of a task.

    Raises:
        SetupError: there is no Python that a sandbox can use, or the packages can't be installed.
        MissingDependency: pytest, which runs the tests of the shipped packages, is not installed.
    """
    python, mounts = _sandbox_python()
    folders = {PACKAGES: _dependencies(instance)}
    if instance.sdist:
        folders[METADATA] = _metadata(instance.sdist)
    shown = tuple(Mount(str(folder), target) for target, folder in folders.items())
    return Runtime(python, (*mounts, *shown), tuple(folders))


def _dependencies(instance: Instance) -> Path:
    """A folder of importable packages: the row's pinned requirements, or pytest alone."""
    if not instance.requirements:
        try:
            pins = [f"{name}=={importlib.metadata.version(name)}" for name in _PYTEST]
        except importlib.metadata.PackageNotFoundError as error:
            raise MissingDependency.extra(str(error.name), "swe") from None
        return _cached("packages", _digest(*pins, _python_tag())[:24], _copy_pytest)
    key = _digest(*sorted(instance.requirements), _python_tag())[:24]
    return _cached("packages", key, lambda target: _pip_install(instance.requirements, target))


def _metadata(sdist: Sdist) -> Path:
    """What `importlib.metadata` is to find of the repository's own package, which is not installed."""

    def make(target: Path) -> None:
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            _unpack(_download(sdist), Path(scratch))
            info = target / f"{sdist.package.replace('-', '_')}-{sdist.version}.dist-info"
            info.mkdir()
            shutil.copyfile(Path(scratch) / "PKG-INFO", info / "METADATA")

    return _cached("metadata", sdist.sha256[:24], make)


def _sandbox_python() -> tuple[str, tuple[Mount, ...]]:
    """A Python that a sandbox can run, and what must be mounted for it."""
    prefix = Path(sys.base_prefix).resolve()
    own = prefix / "bin" / f"python{_python_tag()}"
    if prefix.is_relative_to("/usr"):
        return str(own), ()
    if readable_by_sandbox(prefix):
        return str(own), (Mount(str(prefix), str(prefix)),)
    if Path("/usr/bin/python3").exists():
        return "/usr/bin/python3", ()
    raise SetupError(f"no Python that a sandbox can use: {prefix} is not readable for it; apt-get install python3")


def apply_patch(tree: Path, patch: str, *, reverse: bool = False) -> None:
    """Applies a unified diff to a tree.

    Raises:
        TaskError: it does not apply.
    """
    if not patch.strip():
        return
    text = patch if patch.endswith("\n") else f"{patch}\n"
    # `git apply` outside a repository's own index: the tree may lie inside another repository.
    command = ["git", "apply", "--whitespace=nowarn", *(["--reverse"] if reverse else []), "-"]
    environment = {**_COMMIT, "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    done = subprocess.run(command, cwd=tree, env=environment, input=text.encode(), capture_output=True, check=False)
    if done.returncode:
        raise TaskError(f"a patch does not apply to {tree.name}: {done.stderr.decode(errors='replace').strip()[:300]}")


def _cached(kind: str, key: str, make: Callable[[Path], None]) -> Path:
    target = cache_dir() / "swe" / kind / key
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{key}-") as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        make(made)
        made.chmod(0o755)
        try:
            made.rename(target)
        except OSError:  # another process was first, with the same content
            if not target.is_dir():
                raise
    return target


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _python_tag() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _copy_package(repo: str, target: Path) -> None:
    name = repo.rpartition("/")[2]
    with as_file(files("skyrl_gym.envs.swe") / "data" / "packages" / name) as source:
        if not source.is_dir():
            raise TaskError(f"no shipped package {repo!r}")
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))


def _commit(tree: Path) -> None:
    """One commit, and nothing else that git could tell."""
    shutil.rmtree(tree / ".git", ignore_errors=True)
    for command in (["init", "-q", "-b", "main"], ["add", "-A", "-f"], ["commit", "-q", "-m", "Initial commit"]):
        done = subprocess.run(["git", *command], cwd=tree, env=_COMMIT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SetupError(f"git {command[0]} failed: {done.stderr.strip()[-200:]}")


def _download(sdist: Sdist) -> Path:
    folder = _cached("sdists", sdist.sha256[:24], lambda target: _pip_download(sdist, target))
    return folder / sdist.filename


def _pip_download(sdist: Sdist, target: Path) -> None:
    wanted = f"{sdist.package}=={sdist.version}"
    _pip(["download", "--no-deps", "--no-binary", ":all:", "--dest", str(target), wanted])
    file = target / sdist.filename
    if not file.is_file():
        raise SetupError(f"the index gave {[f.name for f in target.iterdir()]} for {wanted}, not {sdist.filename}")
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != sdist.sha256:
        raise SetupError(f"{sdist.filename} has sha256 {found}, the task says {sdist.sha256}")


def _unpack(archive: Path, target: Path) -> None:
    """The content of the archive's single top folder."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        with tarfile.open(archive) as file:
            file.extractall(scratch, filter="data")
        (top,) = Path(scratch).iterdir()
        shutil.copytree(top, target, symlinks=True, dirs_exist_ok=True)


def _pip_install(requirements: Sequence[str], target: Path) -> None:
    _pip(["install", "--no-compile", "--target", str(target), *requirements])


def _copy_pytest(target: Path) -> None:
    for name in _PYTEST:
        for entry in importlib.metadata.files(name) or ():
            source = Path(str(entry.locate()))
            if ".." not in entry.parts and source.suffix != ".pyc" and source.is_file():
                (target / entry).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target / entry)


def _pip(arguments: Sequence[str]) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False)
    except subprocess.TimeoutExpired:
        raise SetupError(f"pip {arguments[0]} took longer than {DOWNLOAD_S} s: {arguments[-1]}") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise SetupError(f"pip {arguments[0]} {arguments[-1]} failed: {last}")
