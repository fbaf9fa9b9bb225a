"""Run folders: what an evaluation or a training leaves on disk.

::

    runs/<name>/
        run.json             kind ("eval" or "train"), configuration, provenance
        trajectories.jsonl   the journal
        excluded.jsonl       eval: trajectories that were not judged and have been tried again
        summary.json         eval: the statistics
        metrics.jsonl        train: one object a step
        eval/before, eval/after   train: evaluation folders
        model/               train: the trained model
        report.html
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from skyrl_gym.errors import ConfigError
from skyrl_gym.evaluate.metrics import Summary
from skyrl_gym.rollout import Trajectory, read_journal

__all__ = ["EXCLUDED", "JOURNAL", "Run", "in_use", "open_run", "provenance", "write_json", "write_whole"]

JOURNAL = "trajectories.jsonl"
EXCLUDED = "excluded.jsonl"
KINDS = ("eval", "train")


@dataclass(frozen=True)
class Run:
    """A run folder; its files are read when asked for, so a run that is going on can be looked at.

    `config` is what the run was asked to do, `provenance` what its result depends on besides.

    Raises:
        ConfigError: on reading a file that is damaged; the message says which, and where.
    """

    path: Path
    kind: Literal["eval", "train"]
    config: Mapping[str, Any]
    provenance: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def summary(self) -> Summary | None:
        """The statistics of an evaluation that has ended."""
        file = self.path / "summary.json"
        if not file.is_file():
            return None
        try:
            return Summary.from_json(_read_json(file))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ConfigError(f"{file} is no summary ({error!r}); delete it and evaluate again") from None

    @property
    def evaluations(self) -> dict[str, Run]:
        """The evaluations of a training, `before` and `after`, as far as they exist."""
        folders = (self.path / "eval" / name for name in ("before", "after"))
        return {folder.name: open_run(folder) for folder in folders if (folder / "run.json").is_file()}

    def trajectories(self) -> Iterator[Trajectory]:
        """The trajectories, one at a time."""
        journal = self.path / JOURNAL
        return read_journal(journal) if journal.is_file() else iter(())

    def metrics(self) -> list[dict[str, Any]]:
        """The steps of a training."""
        file = self.path / "metrics.jsonl"
        if not file.is_file():
            return []
        lines = file.read_bytes().split(b"\n")[:-1]  # a torn last line is left out
        return [_object(line, f"{file}, line {number}") for number, line in enumerate(lines, 1)]


def open_run(path: str | Path) -> Run:
    """A run folder.

    Raises:
        ConfigError: it is none, or its run.json is damaged.
    """
    folder = Path(path)
    file = folder / "run.json"
    if not file.is_file():
        raise ConfigError(f"{folder} is no run folder: it has no run.json (`skyrl eval` and `skyrl train` make them)")
    data = _read_json(file)
    if data.get("kind") not in KINDS:
        raise ConfigError(f"{file}: the kind of a run is {' or '.join(KINDS)}; got {data.get('kind')!r:.60}")
    return Run(folder, data["kind"], data.get("config") or {}, data.get("provenance") or {})


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Holds a run folder, made if need be, against a second writer; a killed process lets go.

    Raises:
        ConfigError: another one holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{folder} is being written by another run: wait for it, or give another folder"
            ) from None
        yield


def provenance() -> dict[str, Any]:
    """What a result depends on besides its configuration.

    `git` is the commit of the working directory's repository, marked `-dirty` when files differ from it.
    """
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "git": _git_commit(),
    }


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Writes a file whole or not at all, and its folder if need be."""
    write_whole(path, [json.dumps(data, indent=2).encode(), b"\n"])


def write_whole(path: Path, pieces: Iterable[bytes]) -> None:
    """As `write_json`, for bytes. A reader sees the old file or the new one, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with part.open("wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


_PACKAGES = ("skyrl-suite", "gymnasium", "torch", "transformers", "trl")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _read_json(path: Path) -> dict[str, Any]:
    return _object(path.read_bytes(), str(path))


def _object(text: bytes, where: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where} is damaged: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{where} is damaged: not an object")
    return data
