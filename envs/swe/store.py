"""The suite's cache on disk: folders made once, whoever asks for them at the same time."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from skyrl_gym.cache import cache_dir
from skyrl_gym.errors import SetupError

__all__ = ["cached", "digest", "digest_of_folder", "make_readable", "scratch_folder"]


def cached(kind: str, key: str, make: Callable[[Path], None]) -> Path:
    """The folder of a key, filled by `make` when it is not there yet.

    Others who want the same key wait, in this process and in others. It is filled beside its place and moved
    there, so that nobody sees half of it.

    Raises:
        SetupError: the cache can't be written; besides, whatever `make` raises.
    """
    target = cache_dir().absolute() / "swe" / kind / key
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent / f".{key}.lock"):
            if not target.is_dir():
                _make_beside(target, make)
    except OSError as error:
        raise SetupError(f"can't write the cache {target.parent} (SKYRL_CACHE moves it): {error}") from error
    return target


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for one use. Not in /tmp, or wherever TMPDIR points: the user of a sandbox must reach it."""
    folder = cache_dir().absolute() / "swe" / "scratch"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        yield Path(scratch)


def digest(*parts: str | bytes) -> str:
    """24 hex digits over the parts."""
    data = b"\0".join(part if isinstance(part, bytes) else part.encode() for part in parts)
    return hashlib.sha256(data).hexdigest()[:24]


def digest_of_folder(folder: Path, *more: str) -> str:
    """24 hex digits over the names and contents of a folder's files, compiled ones left out, and more text."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return digest(*more, *(part for file in files for part in (str(file.relative_to(folder)), file.read_bytes())))


def make_readable(folder: Path) -> None:
    """Lets everybody read a folder: a sandbox may run as another user."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | 0o444 | (0o111 if path.is_dir() else 0))


def _make_beside(target: Path, make: Callable[[Path], None]) -> None:
    made = target.parent / f".{target.name}.part"
    shutil.rmtree(made, ignore_errors=True)  # what a killed process left
    try:
        made.mkdir()
        make(made)
        make_readable(made)
        made.rename(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One at a time, threads included: a lock belongs to an opening of the file. It ends with its holder."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
