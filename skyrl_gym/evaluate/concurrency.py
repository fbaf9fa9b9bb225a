"""How many episodes this machine bears at once."""

from __future__ import annotations

import os

from skyrl_gym.registration import registered

__all__ = ["auto_concurrency"]

PLAIN = 32
"""Episodes of an environment that lives in this process: as many as a local model answers in one batch."""

SERVED = 64
"""The same with a model behind a server, which batches more."""

SANDBOXES = frozenset({"bubblewrap", "docker"})
PER_CORE = 4
"""Sandboxes a core: most of the time an agent's sandbox waits for the agent."""

SANDBOX_BYTES = 2**30


def auto_concurrency(env_id: str, *, served: bool = False, waits: bool = True) -> int:
    """Episodes at once: what the policy can batch, within what cores and free memory bear of sandboxes.

    Args:
        env_id: its registry entry says whether it needs a sandbox.
        served: a server answers, not a model in this process.
        waits: episodes wait for a model; without one a sandbox is always at work.
    """
    wanted = SERVED if served else PLAIN
    needs = next((entry.needs for entry in registered() if entry.id == env_id), ())
    if not SANDBOXES & set(needs):
        return wanted
    cores = len(os.sched_getaffinity(0)) * (PER_CORE if waits else 1)
    return max(1, min(wanted, cores, _free_bytes() // SANDBOX_BYTES))


def _free_bytes() -> int:
    """Of memory, that this process could take."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
