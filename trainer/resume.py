"""What a training that was cut short has on disk: how far it was, and the trajectories that it finished.

A run that goes on does the steps after its last checkpoint again, with the trajectories that they had: nothing
that was finished is played twice, and no task is left out or comes twice.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from skyrl_gym.errors import StopReason
from skyrl_gym.evaluate.runs import JOURNAL, ROLLOUT_METRICS, write_whole
from skyrl_gym.rollout import RolloutRequest, Trajectory, read_journal

__all__ = ["Finished", "Ledger", "checkpoint_of", "cut_metrics", "journal_of", "mark_whole", "rollout_metrics_of"]

_WHOLE = "whole"  # an empty file, the last thing written into a checkpoint
# A crash too: it ended the run, so no step was taken with it, and what goes on has been mended.
_UNFINISHED = frozenset({StopReason.CANCELLED, StopReason.RUN_TIMEOUT, StopReason.CRASH})


def journal_of(folder: Path, rank: int) -> Path:
    """The journal of a process; the first has the run's own."""
    return _of_process(folder / JOURNAL, rank)


def rollout_metrics_of(folder: Path, rank: int) -> Path:
    """Where the metrics of a process's runner are written; the first has the run's own."""
    return _of_process(folder / ROLLOUT_METRICS, rank)


def _of_process(file: Path, rank: int) -> Path:
    return file if rank == 0 else file.with_suffix(f".{rank}.jsonl")


class Ledger:
    """How many groups had been drawn after each step: a line a step, on disk before the step is taken."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def position_before(self, step: int) -> int:
        """How many groups the steps before this one drew; steps count from 0."""
        return max((line["groups"] for line in self._lines() if line["step"] < step), default=0)

    def cut(self, step: int) -> None:
        """Forgets this step and the later ones."""
        kept = [line for line in self._lines() if line["step"] < step]
        write_whole(self._path, (json.dumps(line).encode() + b"\n" for line in kept))

    def note(self, step: int, groups: int) -> None:
        """Notes that `groups` groups had been drawn once this step had its batch."""
        with self._path.open("ab") as file:
            file.write(json.dumps({"step": step, "groups": groups}).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _lines(self) -> Iterator[dict[str, int]]:
        if self._path.is_file():
            for line in self._path.read_bytes().split(b"\n")[:-1]:  # a torn last line is left out
                yield json.loads(line)


class Finished:
    """Trajectories that a journal holds already, by what they were asked for."""

    def __init__(self, trajectories: Iterable[Trajectory] = ()) -> None:
        self._by_key = {t.key: t for t in trajectories if t.stop_reason not in _UNFINISHED}

    @classmethod
    def read(cls, folder: Path, position: int) -> Finished:
        """Those of all processes, of groups from this position on."""
        journals = [folder / JOURNAL, *sorted(folder.glob(JOURNAL.replace(".jsonl", ".*.jsonl")))]
        return cls(
            trajectory
            for journal in journals
            if journal.is_file()
            for trajectory in read_journal(journal)
            if int(trajectory.group.split("/")[0]) >= position
        )

    def __len__(self) -> int:
        return len(self._by_key)

    def take(self, requests: Sequence[RolloutRequest]) -> tuple[list[Trajectory], list[RolloutRequest]]:
        """The trajectories of some requests, which are then forgotten here, and the requests that have none.

        Those know how many of the trajectories taken are valid and of their group: where groups are closed early,
        `requests` are whole groups.
        """
        taken = [self._by_key.pop(request.key) for request in requests if request.key in self._by_key]
        keys = {trajectory.key for trajectory in taken}
        valid = Counter((trajectory.env_id, trajectory.group) for trajectory in taken if trajectory.valid)
        missing = [request for request in requests if request.key not in keys]
        return taken, [replace(request, group_valid=valid[request.group_key]) for request in missing]


def mark_whole(checkpoint: Path) -> None:
    """Marks a checkpoint as complete."""
    (checkpoint / _WHOLE).touch()


def checkpoint_of(folder: Path) -> Path | None:
    """The newest complete checkpoint; what a kill left of a later one is removed."""
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]), reverse=True)
    for checkpoint in found:
        if (checkpoint / _WHOLE).exists():
            return checkpoint
        shutil.rmtree(checkpoint)
    return None


def cut_metrics(path: Path, step: int) -> None:
    """Forgets the metrics of the steps after `step`: they are taken, and written, again."""
    if not path.is_file():
        return
    lines: list[Mapping[str, Any]] = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
    write_whole(path, (json.dumps(line).encode() + b"\n" for line in lines if line["step"] <= step))
