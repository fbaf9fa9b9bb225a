"""What a repository's tests need besides the repository: an interpreter, and packages from the index.

The fixed version of the repository's own package is never fetched: it is the answer.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from skyrl_gym.envs.swe.index import download, install, unpack
from skyrl_gym.envs.swe.instance import Instance, Sdist
from skyrl_gym.envs.swe.store import cached, digest
from skyrl_gym.errors import MissingDependency, SetupError, TaskError
from skyrl_gym.sandbox import Mount, readable_by_sandbox

__all__ = ["PYTHON_ENV", "Runtime", "runtime"]

PACKAGES = "/opt/packages"
METADATA = "/opt/metadata"
# Sets then have one order, and nothing is compiled to disk.
PYTHON_ENV = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
# Everything that pytest needs to run, from this environment: the shipped packages then need no network.
_PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")


@dataclass(frozen=True)
class Runtime:
    """What a sandbox needs to run a repository: the interpreter, mounts, and where packages are imported from."""

    python: str
    mounts: tuple[Mount, ...]
    paths: tuple[str, ...]


def runtime(instance: Instance) -> Runtime:
    """The interpreter and packages of a task; cached.

    Raises:
        SetupError: there is no Python that a sandbox can use, or the packages can't be installed.
        TaskError: the row's requirements bring the repository's own package.
        MissingDependency: pytest, which runs the tests of the shipped packages, is not installed.
    """
    python, mounts = _sandbox_python()
    folders = {PACKAGES: _installed(instance.requirements, python) if instance.requirements else _own_pytest()}
    if instance.sdist:
        _refuse_the_answer(instance.id, instance.sdist, folders[PACKAGES])
        folders[METADATA] = _metadata(instance.sdist)
    shown = (Mount(str(folder), target) for target, folder in folders.items())
    return Runtime(python, (*mounts, *shown), tuple(folders))


def _sandbox_python() -> tuple[str, tuple[Mount, ...]]:
    """A Python that a sandbox can run, and what must be mounted for it."""
    prefix = Path(sys.base_prefix).resolve()
    own = prefix / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    if prefix.is_relative_to("/usr"):
        return str(own), ()
    if readable_by_sandbox(prefix):
        return str(own), (Mount(str(prefix), str(prefix)),)
    for python in (Path("/usr/bin") / own.name, Path("/usr/bin/python3")):
        if python.exists():
            return str(python), ()
    raise SetupError(f"no Python that a sandbox can use: {prefix} is not readable for it; apt-get install python3")


@functools.cache
def _version(python: str) -> str:
    command = [python, "-I", "-c", "import sys; print(sys.version)"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def _installed(requirements: Sequence[str], python: str) -> Path:
    """A folder of pinned packages, for this interpreter."""

    key = digest(*sorted(requirements), _version(python))
    return cached("packages", key, lambda target: install(requirements, python, target))


def _own_pytest() -> Path:
    """A folder with the pytest of the present environment; it is the same for every interpreter."""
    try:
        pins = [f"{name}=={importlib.metadata.version(name)}" for name in _PYTEST]
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingDependency.extra(str(error.name), "swe") from None
    return cached("packages", digest(*pins), _copy_pytest)


def _copy_pytest(target: Path) -> None:
    for name in _PYTEST:
        for entry in importlib.metadata.files(name) or ():
            source = Path(str(entry.locate()))
            if ".." not in entry.parts and source.suffix != ".pyc" and source.is_file():
                (target / entry).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target / entry)


def _metadata(sdist: Sdist) -> Path:
    """What `importlib.metadata` is to find of the repository's own package, which is not installed."""

    def make(target: Path) -> None:
        info = target / f"{sdist.package.replace('-', '_')}-{sdist.version}.dist-info"
        unpack(download(sdist), target / "source")
        info.mkdir()
        (target / "source" / "PKG-INFO").rename(info / "METADATA")
        shutil.rmtree(target / "source")

    return cached("metadata", sdist.sha256[:24], make)


def _refuse_the_answer(task: str, sdist: Sdist, packages: Path) -> None:
    held = {_canonical(found.name) for found in importlib.metadata.distributions(path=[str(packages)])}
    if _canonical(sdist.package) in held:
        raise TaskError(
            f"task {task}: pip_packages bring {sdist.package} itself, which would hide the repository's code"
        )


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
