"""The one way to a sandbox, whatever the backend."""

from __future__ import annotations

import warnings

from skyrl_gym.sandbox.base import Sandbox, SandboxSpec, Snapshot
from skyrl_gym.sandbox.bubblewrap import BubblewrapSandbox
from skyrl_gym.sandbox.containers import DockerSandbox
from skyrl_gym.sandbox.ledger import Ledger, default_ledger
from skyrl_gym.sandbox.process import ProcessSandbox, UnsafeSandboxWarning
from skyrl_gym.sandbox.status import unknown_backend

__all__ = ["open_sandbox"]


async def open_sandbox(
    spec: SandboxSpec,
    backend: str = "bubblewrap",
    *,
    ledger: Ledger | None = None,
    snapshot: Snapshot | None = None,
) -> Sandbox:
    """A started sandbox; close it, or use it as `async with await open_sandbox(spec) as box`.

    There is no fallback from one backend to another: what is asked for is had, or there is an error.

    Args:
        spec: what it is made from.
        backend: one of `BACKENDS`.
        ledger: where it is entered; the process's unless given.
        snapshot: files to begin with, of a sandbox with the same specification and backend.

    Raises:
        ConfigError: no such backend, or the snapshot is of another kind of sandbox.
        SandboxError: it can't be started; nothing is left behind.
    """
    book = ledger or default_ledger()
    match backend:
        case "bubblewrap":
            return await BubblewrapSandbox(spec, book).start(snapshot)
        case "docker":
            return await DockerSandbox(spec, book).start(snapshot)
        case "process":
            warnings.warn(
                "the process backend does not isolate: commands act as you", UnsafeSandboxWarning, stacklevel=2
            )
            return await ProcessSandbox(spec, book).start(snapshot)
    raise unknown_backend(backend)
