"""What the tests of a backend stand on: its sandboxes, a ledger, and who is still there afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from skyrl_gym.sandbox.base import Sandbox, SandboxSpec, Snapshot
from skyrl_gym.sandbox.ledger import Ledger

__all__ = ["NAP", "Harness", "command_lines", "reachable_folder", "survivors"]

# Seconds to sleep, by which this run's own sleepers are known.
NAP = f"900.{secrets.randbelow(10**9):09d}"


class Harness:
    """To be told how a sandbox of the backend is opened.

    `cancelled_after_s`: seconds after which a start is cut short, one start for each; the last lets it finish.
    """

    cancelled_after_s: ClassVar[tuple[float, ...]] = tuple(step * 0.004 for step in range(20))

    async def open(self, spec: SandboxSpec, ledger: Ledger, snapshot: Snapshot | None = None) -> Sandbox:
        """A started sandbox, entered in the ledger."""
        raise NotImplementedError

    def made_like(self, spec: SandboxSpec) -> SandboxSpec:
        """A test's specification with what the backend needs besides, an image for instance."""
        return spec

    def left(self) -> list[str]:
        """What the backend holds elsewhere than in processes, descriptors and temporary folders; nothing at the end."""
        return []

    @pytest.fixture
    def open_folder(self) -> Iterator[Path]:
        with reachable_folder() as folder:
            yield folder

    @pytest.fixture
    def own_temporary(self, open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Where temporary folders are made during the test: what is left there was left by it."""
        monkeypatch.setattr(tempfile, "tempdir", str(open_folder))
        return open_folder

    @pytest.fixture
    def ledger(self) -> Ledger:
        return Ledger()

    @pytest.fixture
    def in_sandbox(self, ledger: Ledger) -> Callable[..., Any]:
        """Runs `work(box)` in a sandbox, closes it, and checks that the ledger balances."""

        def run(work: Callable[[Any], Awaitable[Any]], spec: SandboxSpec | None = None) -> Any:
            async def main() -> Any:
                async with await self.open(self.made_like(spec or SandboxSpec()), ledger) as box:
                    return await work(box)

            result = asyncio.run(main())
            assert ledger.live == 0
            assert ledger.created == ledger.destroyed
            return result

        return run

    @pytest.fixture
    def survivors(self) -> Callable[..., list[int]]:
        return survivors


@contextmanager
def reachable_folder() -> Iterator[Path]:
    """A folder that a sandbox's user can reach; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def survivors(seconds: str, within_s: float = 2.0) -> list[int]:
    """The processes of this machine that run `sleep <seconds>`; two seconds are left for them to go."""
    until = time.monotonic() + within_s
    while (found := _sleepers(seconds)) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def command_lines() -> dict[int, bytes]:
    """The argument list of each process of this machine, as everybody can read it; a NUL after each argument."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            found[int(pid)] = Path(f"/proc/{pid}/cmdline").read_bytes()
    return found


def _sleepers(seconds: str) -> list[int]:
    return [pid for pid, line in command_lines().items() if line == f"sleep\0{seconds}\0".encode()]
