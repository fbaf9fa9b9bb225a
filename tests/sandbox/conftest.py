"""A ledger of one's own, and sandboxes of every backend that runs here."""

import asyncio
import tempfile
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
