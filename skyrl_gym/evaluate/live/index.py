"""An index of a journal: where each trajectory lies in the file, and the few numbers that lists and totals need.

A journal of many gigabytes is read once, in the background, and again only where something was added. What is
shown in full is read from its place on disk.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from skyrl_gym.evaluate.metrics import is_judged, summarise
from skyrl_gym.evaluate.report.survey import Survey
from skyrl_gym.rollout import Trajectory

__all__ = ["Index", "Row"]


@dataclass(frozen=True, slots=True)
class Row:
    """One trajectory without its messages and tokens, and where they are."""

    bare: Trajectory
    offset: int
    length: int
    turns: int
    tokens: int
    tools: frozenset[str]
    version: int | None

    @property
    def reward(self) -> float | None:
        """The reward, if it counts."""
        return self.bare.reward if is_judged(self.bare) else None


class Index:
    """The rows of a journal, in its order; `grow` reads what is new. Any thread may look.

    Args:
        path: of the journal; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Row] = []
        self.read = 0
        self.damaged = 0
        self._lock = Lock()
        self._turn_seconds: defaultdict[str, float] = defaultdict(float)
        self._survey: tuple[int, tuple[int, ...], Survey] | None = None

    @property
    def size(self) -> int:
        """Bytes of the journal now."""
        return self.path.stat().st_size if self.path.is_file() else 0

    def grow(self, most_bytes: int = sys.maxsize) -> bool:
        """Reads about so many bytes of what was not read yet; says whether there was anything.

        A journal that has become shorter (an evaluation set its excluded trajectories aside) is read anew.
        """
        with self._lock:
            if self.size < self.read:
                self._forget()
            if not self.path.is_file():
                return False
            begun = self.read
            with self.path.open("rb") as lines:
                lines.seek(begun)
                for line in lines:
                    if not line.endswith(b"\n") or self.read - begun >= most_bytes:
                        break
                    self._add(line)
                    self.read += len(line)
            return self.read > begun

    def trajectory(self, position: int) -> Trajectory:
        """The whole trajectory at a position, from disk.

        Raises:
            IndexError: there is none.
        """
        if position < 0:
            raise IndexError(position)
        row = self.rows[position]
        return Trajectory.from_json(json.loads(self.line(row)))

    def line(self, row: Row) -> bytes:
        """A trajectory's line of the file."""
        with self.path.open("rb") as lines:
            lines.seek(row.offset)
            return lines.read(row.length)

    def survey(self, ks: tuple[int, ...]) -> Survey:
        """The numbers of what was read so far."""
        rows = list(self.rows)
        if self._survey is not None and self._survey[:2] == (len(rows), ks):
            return self._survey[2]
        summary = summarise((row.bare for row in rows), ks)
        if rows:
            tokens = sum(row.tokens for row in rows)
            turns = sum(row.turns for row in rows) / len(rows)
            summary = type(summary)(**{**_fields(summary), "sampled_tokens": tokens, "turns": turns})
        lines = tuple((row.bare.stop_reason.value, row.reward) for row in rows)
        seconds = {name: total / len(rows) for name, total in dict(self._turn_seconds).items()} if rows else {}
        found = Survey(summary, lines, seconds)
        self._survey = (len(rows), ks, found)
        return found

    def _forget(self) -> None:
        self.rows = []
        self.read = self.damaged = 0
        self._turn_seconds.clear()

    def _add(self, line: bytes) -> None:
        try:
            data = json.loads(line)
            row = _row(data, self.read, len(line))
            seconds = [turn["seconds"].items() for turn in data["turns"]]
        except (ValueError, KeyError, TypeError, AttributeError):
            self.damaged += 1
            return
        for taken in seconds:
            for name, value in taken:
                self._turn_seconds[name] += value
        self.rows.append(row)


def _fields(summary: Any) -> dict[str, Any]:
    return {name: getattr(summary, name) for name in summary.__dataclass_fields__}


def _row(data: dict[str, Any], offset: int, length: int) -> Row:
    turns = data["turns"]
    steps = [turn["transition"] for turn in turns if turn["transition"]]
    calls = (call for turn in turns for call in turn["message"].get("tool_calls") or ())
    return Row(
        bare=Trajectory.from_json(_shared({**data, "opening": (), "turns": (), "artifacts": {}, "error": None})),
        offset=offset,
        length=length,
        turns=len(turns),
        tokens=sum(len(step["sampled_ids"]) for step in steps),
        tools=frozenset(sys.intern(str(call["function"]["name"])) for call in calls),
        version=steps[0]["policy_version"] if steps else None,
    )


def _shared(data: dict[str, Any]) -> dict[str, Any]:
    """One copy of each text that many rows hold."""
    return {key: sys.intern(value) if isinstance(value, str) else value for key, value in data.items()}
