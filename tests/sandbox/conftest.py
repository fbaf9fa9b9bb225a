"""Folders and a look around for survivors, as the conformance kit has them; and container engines of our own."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from skyrl_gym.sandbox import Ledger, testing
from skyrl_gym.sandbox.testing.engines import private_engine, write_image


@pytest.fixture
def open_folder() -> Iterator[Path]:
    with testing.reachable_folder() as folder:
        yield folder


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def own_temporary(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made during the test: what is left there was left by it."""
    monkeypatch.setattr(tempfile, "tempdir", str(open_folder))
    return open_folder


@pytest.fixture
def survivors() -> Callable[..., list[int]]:
    return testing.survivors


@pytest.fixture(scope="session")
def engine_address() -> Iterator[Callable[[str], str]]:
    """By name, the address of an engine that runs for these tests only; skips where it does not start."""
    with ExitStack() as opened:

        @cache
        def start(name: str) -> str:
            return opened.enter_context(private_engine(name))

        def address(name: str) -> str:
            found = start(name)
            if not found.startswith("unix:"):
                pytest.skip(found)
            return found

        yield address


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Dockerfile for an image of this machine's bash and busybox."""
    folder = tmp_path_factory.mktemp("image")
    if problem := write_image(folder):
        pytest.skip(problem)
    return folder
