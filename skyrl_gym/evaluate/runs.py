"""Run folders: what an evaluation or a training leaves on disk.

::

    runs/<name>/
        run.json             kind ("eval" or "train"), configuration, provenance
        trajectories.jsonl   the journal
        summary.json         eval: the statistics
        metrics.jsonl        train: one object a step
        eval/before, eval/after   train: evaluation folders
        model/               train: the trained model
        report.html
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from skyrl_gym.errors import ConfigError
from skyrl_gym.evaluate.metrics import Summary
from skyrl_gym.rollout import Trajectory, read_journal

__all__ = ["JOURNAL", "Run", "open_run", "provenance", "write_json"]

JOURNAL = "trajectories.jsonl"


@dataclass(frozen=True)
class Run:
    """A run folder, read when asked."""

    path: Path
    info: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def kind(self) -> str:
        """`eval` or `train`."""
        return str(self.info["kind"])

    @property
    def summary(self) -> Summary | None:
        """The statistics of an evaluation that has ended."""
        file = self.path / "summary.json"
        return Summary.from_json(_read_json(file)) if file.is_file() else None

    @property
    def evaluations(self) -> dict[str, Run]:
        """The evaluations of a training, by name."""
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
        return [json.loads(line) for line in lines]


def open_run(path: str | Path) -> Run:
    """A run folder.

    Raises:
        ConfigError: it is none; the message says what makes one.
    """
    folder = Path(path)
    if not (folder / "run.json").is_file():
        raise ConfigError(f"{folder} is no run folder: it has no run.json (`skyrl eval` and `skyrl train` make them)")
    return Run(folder, _read_json(folder / "run.json"))


def provenance() -> dict[str, Any]:
    """What a result depends on besides its configuration."""
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "git": _git_commit(),
    }


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Writes a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump(data, file, indent=2, ensure_ascii=False)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(path)


_PACKAGES = ("skyrl-suite", "gymnasium", "torch", "transformers", "trl")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).resolve().parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path} is damaged: not an object")
    return data
