"""A ledger of one's own, and sandboxes of every backend that runs here."""

import asyncio
import os
import tempfile
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.sandbox import Ledger, SandboxSpec, UnsafeSandboxWarning, bubblewrap_problem, open_sandbox


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that the sandbox's user can reach; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def own_temporary(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made during the test: what is left there was left by it."""
    monkeypatch.setattr(tempfile, "tempdir", str(open_folder))
    return open_folder


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture(params=["bubblewrap", "process"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "bubblewrap" and (problem := bubblewrap_problem()):
        pytest.skip(problem)
    return str(request.param)


@pytest.fixture
def in_sandbox(backend: str, ledger: Ledger) -> Callable[..., Any]:
    """Runs `work(box)` in a sandbox, closes it, and checks that the ledger balances."""

    def run(work: Callable[[Any], Awaitable[Any]], spec: SandboxSpec | None = None) -> Any:
        async def main() -> Any:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UnsafeSandboxWarning)
                box = await open_sandbox(spec or SandboxSpec(), backend, ledger=ledger)
            async with box:
                return await work(box)

        result = asyncio.run(main())
        assert ledger.live == 0
        assert ledger.created == ledger.destroyed
        return result

    return run


@pytest.fixture
def survivors() -> Callable[..., list[int]]:
    """The processes that run `sleep <seconds>`; two seconds are left for them to go."""

    def find(seconds: str, within_s: float = 2.0) -> list[int]:
        until = time.monotonic() + within_s
        while (found := _sleepers(seconds)) and time.monotonic() < until:
            time.sleep(0.05)
        return found

    return find


def _sleepers(seconds: str) -> list[int]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if line == f"sleep\0{seconds}\0".encode():
            found.append(int(pid))
    return found
