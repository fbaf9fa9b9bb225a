"""Where tools act: isolated places with files and processes, one protocol for all backends."""

from __future__ import annotations

from skyrl_gym.sandbox.base import ExecResult, Limits, Mount, Sandbox, SandboxSpec, Shell, Snapshot
from skyrl_gym.sandbox.bubblewrap import readable_by_sandbox
from skyrl_gym.sandbox.fake import FakeSandbox
from skyrl_gym.sandbox.ledger import Ledger, default_ledger
from skyrl_gym.sandbox.opening import open_sandbox
from skyrl_gym.sandbox.pool import Preparation, SandboxPool, pool_in_use, to_be_asked_again
from skyrl_gym.sandbox.process import UnsafeSandboxWarning
from skyrl_gym.sandbox.status import BACKENDS, BackendStatus, bubblewrap_problem, check_backend

__all__ = [
    "BACKENDS",
    "BackendStatus",
    "ExecResult",
    "FakeSandbox",
    "Ledger",
    "Limits",
    "Mount",
    "Preparation",
    "Sandbox",
    "SandboxPool",
    "SandboxSpec",
    "Shell",
    "Snapshot",
    "UnsafeSandboxWarning",
    "bubblewrap_problem",
    "check_backend",
    "default_ledger",
    "open_sandbox",
    "pool_in_use",
    "readable_by_sandbox",
    "to_be_asked_again",
]
