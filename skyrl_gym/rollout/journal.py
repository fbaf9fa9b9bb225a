"""The journal: an append-only file of finished trajectories, one JSON line each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from skyrl_gym.errors import ConfigError
from skyrl_gym.rollout.trajectory import Trajectory

__all__ = ["Journal", "read_journal"]


class Journal:
    """Appends trajectories to a file, each on disk before `append` returns.

    Opening an existing journal continues it: a last line torn by a kill is cut off first. Use it as a
    context manager.

    Args:
        path: the file; folders above it are made.
        fsync: wait until the disk has what is appended. Without it a crash of the machine, unlike one of the
            program, may lose the last lines.
    """

    def __init__(self, path: str | Path, *, fsync: bool = True) -> None:
        self.path = Path(path)
        self._fsync = fsync
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("ab+")
        _cut_torn_line(self._file)

    def append(self, *trajectories: Trajectory) -> None:
        """Writes one line each; all are there when it returns.

        Raises:
            OSError: it could not be written (a full disk); of the new lines the journal has those that fitted whole.
        """
        try:
            self._file.writelines(map(encode_line, trajectories))
            self._file.flush()
            if self._fsync:
                os.fsync(self._file.fileno())
        except OSError:
            with suppress(OSError):  # closing writes what is buffered, and fails again
                self._file.close()
            with self.path.open("rb+") as file:
                _cut_torn_line(file)
            raise

    def close(self) -> None:
        """Closes the file; may be called twice."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _cut_torn_line(file: BinaryIO) -> None:
    size = file.seek(0, os.SEEK_END)
    end = size
    while end > 0:
        start = max(0, end - 65_536)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        file.truncate(end)


def encode_line(trajectory: Trajectory) -> bytes:
    """One journal line. Lone surrogates (a model can sample them) are kept, escaped."""
    text = json.dumps(trajectory.to_json(), ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(trajectory.to_json(), separators=(",", ":")).encode() + b"\n"


def read_journal(path: str | Path) -> Iterator[Trajectory]:
    """The trajectories of a journal, one at a time; a torn last line is left out.

    Lines end at "\\n" alone: other separators that Unicode knows may stand inside tool output.

    Raises:
        ConfigError: there is no such file, or a line other than the last is damaged.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"no such journal: {file}")
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield Trajectory.from_json(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"{file}, line {number}: not a trajectory ({error!r})") from None
