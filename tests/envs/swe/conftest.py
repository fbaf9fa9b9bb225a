"""Where the real tasks are, and what the suite needs."""

import os
from pathlib import Path

import pytest

from skyrl_gym import TaskSet
from skyrl_gym.sandbox import bubblewrap_problem


@pytest.fixture(scope="session", autouse=True)
def _needs_bubblewrap() -> None:
    if problem := bubblewrap_problem():
        pytest.skip(problem)


@pytest.fixture(scope="session")
def real_tasks() -> TaskSet:
    beside = Path(__file__).resolve().parents[4] / "shared" / "data" / "swe_pypi.jsonl"
    path = Path(os.environ.get("SKYRL_SWE_PYPI") or beside)
    if not path.is_file():
        pytest.skip("the file of real tasks is not here; name it in SKYRL_SWE_PYPI")
    return TaskSet.from_jsonl(path)
