"""Run folders: what an evaluation or a training leaves on disk.

::

    runs/<name>/
        run.json             kind ("eval", "suite" or "train"), configuration, provenance
        provenance.json      eval: all that it takes to repeat it
        spending.json        eval: the tokens used so far
        trajectories.jsonl   the journal
        excluded.jsonl       eval: trajectories that were not judged and have been tried again
        summary.json         eval: the statistics
        ENTRY/               suite: the evaluation of each entry
        metrics.jsonl        train: one object a step
        eval/before, eval/after   train: evaluation folders
        model/               train: the trained model
        report.html
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from skyrl_gym.errors import ConfigError
from skyrl_gym.evaluate.files import write_json, write_whole
from skyrl_gym.evaluate.metrics import Summary
from skyrl_gym.evaluate.provenance import provenance
from skyrl_gym.rollout import Trajectory, read_journal

__all__ = [
    "EXCLUDED",
    "JOURNAL",
    "ROLLOUT_METRICS",
    "Run",
    "in_use",
    "open_run",
    "provenance",
    "write_json",
    "write_whole",
]

JOURNAL = "trajectories.jsonl"
EXCLUDED = "excluded.jsonl"
ROLLOUT_METRICS = "rollout.jsonl"
KINDS = ("eval", "suite", "train")


@dataclass(frozen=True)
class Run:
    """A run folder; its files are read when asked for, so a run that is going on can be looked at.

    `config` is what the run was asked to do, `provenance` what its result depends on besides.

    Raises:
        ConfigError: on reading a file that is damaged; the message says which, and where.
    """

    path: Path
    kind: Literal["eval", "suite", "train"]
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
    def tries(self) -> int:
        """Trajectories of each task that an evaluation asks for."""
        return int(self.config.get("samples", 1)) * max(1, len(self.config.get("seeds") or ()))

    @property
    def evaluations(self) -> dict[str, Run]:
        """The evaluations of a training (`before` and `after`) or a suite, as far as they exist."""
        if self.kind == "suite":
            folders = [self.path / name for name in self.config.get("entries", ())]
        else:
            folders = [self.path / "eval" / name for name in ("before", "after")]
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
        raise ConfigError(f"{file}: the kind of a run is {', '.join(KINDS)}; got {data.get('kind')!r:.60}")
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
