"""The package index, through pip: source distributions and pinned packages."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from shutil import copytree

from skyrl_gym.envs.swe.instance import Sdist
from skyrl_gym.envs.swe.store import cached
from skyrl_gym.errors import SetupError

__all__ = ["download", "find", "install", "unpack"]

PIP_S = 300.0


def download(sdist: Sdist) -> Path:
    """The archive of a source distribution, its hash checked before pip looks into it; cached.

    Raises:
        SetupError: the index does not give it.
    """

    def make(target: Path) -> None:
        what = f"{sdist.package}=={sdist.version}"
        options = ["--no-deps", "--no-binary", ":all:", "--require-hashes", "--dest", str(target)]
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
            wanted.write(f"{what} --hash=sha256:{sdist.sha256}\n")
            wanted.flush()
            _pip([], ["download", *options, "--requirement", wanted.name], what)

    folder = cached("sdists", sdist.sha256[:24], make)
    file = folder / sdist.filename
    if not file.is_file():
        raise SetupError(f"the index gave {sorted(f.name for f in folder.iterdir())}, not {sdist.filename}")
    return file


def find(package: str, version: str) -> Sdist:
    """The source distribution of a version, as the index gives it now.

    Raises:
        SetupError: the index does not give it.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = ["--no-deps", "--no-binary", ":all:", "--dest", folder]
        _pip([], ["download", *options, f"{package}=={version}"], f"{package}=={version}")
        (file,) = Path(folder).iterdir()
        return Sdist(package, version, file.name, hashlib.sha256(file.read_bytes()).hexdigest())


def unpack(archive: Path, target: Path) -> None:
    """Fills a folder with the content of the archive's single top folder.

    Raises:
        SetupError: it is no such archive.
    """
    with tempfile.TemporaryDirectory() as scratch:
        try:
            with tarfile.open(archive) as file:
                file.extractall(scratch, filter="data")
            (top,) = Path(scratch).iterdir()
        except (tarfile.TarError, ValueError) as error:
            raise SetupError(f"{archive.name} is no source distribution: {error}") from error
        copytree(top, target, symlinks=True, dirs_exist_ok=True)


def install(requirements: Sequence[str], python: str, target: Path) -> None:
    """Installs packages into a folder, for an interpreter.

    Raises:
        SetupError: pip can't.
    """
    _pip(["--python", python], ["install", "--no-compile", "--target", str(target), *requirements], requirements[-1])


def _pip(options: Sequence[str], arguments: Sequence[str], what: str) -> None:
    command = [sys.executable, "-m", "pip", *options, "-qq", "--disable-pip-version-check", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_S, check=False)
    except subprocess.TimeoutExpired:
        raise SetupError(f"pip {arguments[0]} took longer than {PIP_S:g} s: {what}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        errors = [number for number, line in enumerate(lines) if line.startswith("ERROR:")]
        reason = " ".join(line.strip() for line in lines[errors[-1] if errors else -1 :])
        raise SetupError(f"pip {arguments[0]} {what} failed: {reason[:500]}")
