"""Published sets of repair tasks, by hub id: which splits they have, and how their rows are read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from skyrl_gym.envs.swe.schemas import standard_row
from skyrl_gym.errors import ConfigError, TaskError
from skyrl_gym.tasks import TaskSet

__all__ = ["SHIPPED", "SOURCES", "Source", "load_source", "read_tasks", "splits_of"]

SHIPPED = "shipped"
"""The source whose tasks come with the suite."""
PYPI = "swe-pypi"
PYPI_FILE = "SKYRL_SWE_PYPI"
HELD_OUT = 10  # one task in so many of a set without a test split is held out


@dataclass(frozen=True)
class Source:
    """One published set.

    `splits` maps our splits to the set's own. Where two of ours come from one of the set's, every tenth task
    belongs to `test`, and the others to `train`.
    """

    hub: str
    schema: str
    splits: Mapping[str, str]


SOURCES: Mapping[str, Source] = {
    "swe-bench": Source("SWE-bench/SWE-bench", "swe-bench", {"train": "dev", "test": "test"}),
    "swe-bench-lite": Source("SWE-bench/SWE-bench_Lite", "swe-bench", {"train": "dev", "test": "test"}),
    "swe-bench-verified": Source("SWE-bench/SWE-bench_Verified", "swe-bench", {"test": "test"}),
    "swe-gym": Source("SWE-Gym/SWE-Gym", "swe-gym", {"train": "train", "test": "train"}),
    "swe-gym-lite": Source("SWE-Gym/SWE-Gym-Lite", "swe-gym", {"train": "train", "test": "train"}),
    "swe-smith": Source("SWE-bench/SWE-smith", "swe-smith", {"train": "train", "test": "train"}),
    "r2e-gym": Source("R2E-Gym/R2E-Gym-Subset", "r2e-gym", {"train": "train", "test": "train"}),
    "r2e-gym-lite": Source("R2E-Gym/R2E-Gym-Lite", "r2e-gym", {"train": "train", "test": "train"}),
    "swe-rebench": Source("nebius/SWE-rebench", "swe-rebench", {"train": "test", "test": "test"}),
    "nemotron": Source("nvidia/Nemotron-RL-Agentic-SWE-Pivot-v1", "nemotron", {"train": "train", "test": "train"}),
    "multi-swe": Source("ByteDance-Seed/Multi-SWE-bench", "multi-swe", {"test": "train"}),
}


def splits_of(name: str) -> tuple[str, ...]:
    """The splits of a source.

    Raises:
        ConfigError: no such source.
    """
    if name == SHIPPED:
        return ("train", "test")
    if name == PYPI:
        return ("test",)
    if name not in SOURCES:
        raise ConfigError(f"unknown source of tasks {name!r}; known: {', '.join(sorted((SHIPPED, PYPI, *SOURCES)))}")
    return tuple(SOURCES[name].splits)


def load_source(name: str, split: str) -> TaskSet:
    """The tasks of a published set in SWE-bench's schema.

    Raises:
        ConfigError: no such set, or it has no such split.
        TaskError: the hub can't be reached, or a row can't be read.
        MissingDependency: the library of data sets is not installed.
    """
    if split not in splits_of(name):
        raise ConfigError(f"{name} has the splits {', '.join(splits_of(name))}; got {split!r}")
    if name == PYPI:
        return _pypi_tasks()
    source = SOURCES[name]
    published = TaskSet.from_hub(source.hub, source.splits[split])
    shared = len(set(source.splits.values())) < len(source.splits)
    places = [i for i in range(len(published)) if not shared or (i % HELD_OUT == 0) is (split == "test")]
    return _standardised(published, source.schema, places)


def read_tasks(path: str, schema: str | None = None) -> TaskSet:
    """The tasks of a file, or of a hub id, in any of the published schemas.

    Raises:
        TaskError: there is no such file or data set; on access, a row that can't be read.
    """
    given = TaskSet.load(path)
    return _standardised(given, schema, range(len(given)))


def _pypi_tasks() -> TaskSet:
    """Fixes of packages on the index. Their patches are others' work, so that they don't come with the suite."""
    path = os.environ.get(PYPI_FILE)
    if not path:
        make = "skyrl tasks make-swe NAME==BASE..FIXED --out FILE"
        raise TaskError(f"no file of tasks from the package index: name one in {PYPI_FILE}, or make one with: {make}")
    return read_tasks(path)


def _standardised(tasks: TaskSet, schema: str | None, places: Sequence[int]) -> TaskSet:
    """The tasks at these places with their rows in SWE-bench's schema, each made when it is asked for."""
    return TaskSet(tasks.name, lambda place: standard_row(tasks[place].data, schema), places)
