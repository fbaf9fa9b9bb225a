"""Tasks and where they come from: lazy, indexable, with ids that depend on content alone."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, overload

from skyrl_gym.errors import ConfigError, MissingDependency, TaskError

__all__ = ["Task", "TaskSet"]

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """One problem: `data` is the row as its source gave it, JSON values only."""

    id: str
    data: Row = field(default_factory=dict)

    @cached_property
    def hash(self) -> str:
        """16 hex digits over the content: the key of journals and caches. Equal content, equal key."""
        return hashlib.sha256(_canonical(self.data).encode()).hexdigest()[:16]

    @classmethod
    def from_row(cls, row: Row) -> Task:
        """A task from a row; its id is the row's `id`, `instance_id` or `task_id`, else its content's hash.

        Raises:
            TaskError: the row is no object of JSON values.
        """
        if not isinstance(row, Mapping):
            raise TaskError(f"a task row is an object, got {type(row).__name__}: {row!r:.200}")
        given = next((row[key] for key in ("id", "instance_id", "task_id") if row.get(key) not in (None, "")), None)
        task = cls("" if given is None else str(given), row)
        return task if task.id else cls(task.hash, row)

    @classmethod
    def given(cls, value: Any) -> Task | None:
        """A task that is itself given, or its row; None for anything else."""
        if isinstance(value, Mapping):
            return cls.from_row(value)
        return value if isinstance(value, Task) else None

    def require(self, name: str) -> Any:
        """A field of the row.

        Raises:
            TaskError: it is missing; the message names those that are there.
        """
        if name not in self.data:
            raise TaskError(
                f"task {self.id}: field {name!r} is missing; it has {', '.join(sorted(self.data)) or 'none'}"
            )
        return self.data[name]


class TaskSet(Sequence[Task]):
    """An ordered set of tasks, each made only when it is asked for.

    Args:
        name: shown in errors and reports.
        get: gives the row (or task) at a position of the source.
        positions: which positions of the source this set holds, in its order.
    """

    def __init__(self, name: str, get: Callable[[int], Row | Task], positions: Sequence[int]) -> None:
        self.name = name
        self._get = get
        self._positions = positions

    @classmethod
    def from_rows(cls, rows: Sequence[Row], name: str = "rows") -> TaskSet:
        """From rows in memory."""
        return cls(name, rows.__getitem__, range(len(rows)))

    @classmethod
    def from_generator(cls, make: Callable[[int], Row], size: int, name: str = "generated") -> TaskSet:
        """From a function of a seed: task i is `make(i)`, the same in every process."""
        return cls(name, make, range(size))

    @classmethod
    def from_jsonl(cls, path: str | Path) -> TaskSet:
        """From a file of one JSON object a line; only line offsets are held in memory.

        Raises:
            TaskError: there is no such file; on access, a line that is no JSON object.
        """
        file = _existing(path)
        offsets = _line_offsets(file)
        return cls(file.stem, lambda i: _read_line(file, offsets[i], i), range(len(offsets)))

    @classmethod
    def from_parquet(cls, path: str | Path) -> TaskSet:
        """From a Parquet file."""
        return cls._from_datasets(lambda d: d.Dataset.from_parquet(str(_existing(path))), Path(path).stem)

    @classmethod
    def from_hub(cls, dataset: str, split: str = "train", config: str | None = None) -> TaskSet:
        """From the `datasets` library: a hub id or a local folder."""
        return cls._from_datasets(lambda d: d.load_dataset(dataset, config, split=split), f"{dataset}:{split}")

    @classmethod
    def from_directory(cls, path: str | Path, load: Callable[[Path], Row]) -> TaskSet:
        """One task a sub-folder, in order of name; `load` turns a folder into a row."""
        folders = sorted(p for p in _existing(path).iterdir() if p.is_dir())
        return cls(Path(path).name, lambda i: load(folders[i]), range(len(folders)))

    @classmethod
    def load(cls, source: str | Path) -> TaskSet:
        """From a path (`.jsonl`, `.parquet`) or a hub id with an optional `:split`."""
        suffix = Path(source).suffix
        if suffix in (".jsonl", ".json"):
            return cls.from_jsonl(source)
        if suffix == ".parquet":
            return cls.from_parquet(source)
        dataset, _, split = str(source).partition(":")
        return cls.from_hub(dataset, split or "train")

    @classmethod
    def _from_datasets(cls, load: Callable[[Any], Any], name: str) -> TaskSet:
        try:
            import datasets
        except ImportError:
            raise MissingDependency.extra("datasets", "train") from None
        try:
            table = load(datasets)
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            raise TaskError(f"could not load the tasks of {name}: {error}") from error
        return cls(name, table.__getitem__, range(len(table)))

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> TaskSet: ...

    def __getitem__(self, index: int | slice) -> Task | TaskSet:
        if isinstance(index, slice):
            return TaskSet(self.name, self._get, self._positions[index])
        row = self._get(self._positions[index])
        return row if isinstance(row, Task) else Task.from_row(row)

    def __iter__(self) -> Iterator[Task]:
        return (self[i] for i in range(len(self)))

    def take(self, n: int) -> TaskSet:
        """The first n."""
        return self[:n]

    def shuffle(self, seed: int) -> TaskSet:
        """The same tasks in an order that depends on the seed alone."""
        positions = list(self._positions)
        random.Random(seed).shuffle(positions)
        return TaskSet(self.name, self._get, positions)

    def filter(self, keep: Callable[[Task], bool]) -> TaskSet:
        """The tasks for which `keep` holds; reads each once."""
        kept = [self._positions[i] for i, task in enumerate(self) if keep(task)]
        return TaskSet(self.name, self._get, kept)

    def find(self, task_id: str) -> Task:
        """The task with this id.

        Raises:
            TaskError: there is none; the message shows some that there are.
        """
        for task in self:
            if task.id == task_id:
                return task
        some = ", ".join(task.id for task in self.take(5))
        raise TaskError(f"{self.name} has no task {task_id!r}; it has {len(self)}, the first: {some or '(none)'}")

    def pick(self, wanted: Any) -> Task:
        """The task with this id, or at this index.

        Raises:
            TaskError: there is no such id.
            ConfigError: it is neither, or the index is out of range.
        """
        if isinstance(wanted, str):
            return self.find(wanted)
        if isinstance(wanted, int) and -len(self) <= wanted < len(self):
            return self[wanted]
        raise ConfigError(f"option 'task' is a Task, a row, an id or an index below {len(self)}; got {wanted!r}")

    def __repr__(self) -> str:
        return f"TaskSet({self.name!r}, {len(self)} tasks)"


def _canonical(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, ensure_ascii=False, default=dict, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TaskError(f"a task row holds JSON values only: {error}") from None


def _existing(path: str | Path) -> Path:
    found = Path(path).expanduser()
    if not found.exists():
        raise TaskError(f"no such file or folder of tasks: {found}")
    return found


def _line_offsets(file: Path) -> list[int]:
    offsets, position = [], 0
    with file.open("rb") as lines:
        for line in lines:
            if line.strip():
                offsets.append(position)
            position += len(line)
    return offsets


def _read_line(file: Path, offset: int, index: int) -> Row:
    with file.open("rb") as lines:
        lines.seek(offset)
        line = lines.readline()
    try:
        row = json.loads(line)
    except ValueError as error:
        raise TaskError(f"{file}: task {index + 1} is not JSON ({error}): {line[:120]!r}") from None
    if not isinstance(row, dict):
        raise TaskError(f"{file}: task {index + 1} is not an object: {line[:120]!r}")
    return row
