"""How many episodes may run, by the load that the policy's server reports: neither starved nor thrashed."""

from __future__ import annotations

import asyncio
import logging

from skyrl_gym.policy.base import PolicyLoad, ReportsLoad
from skyrl_gym.rollout.schedule import Slots

__all__ = ["Admission", "admit_by_load"]

_log = logging.getLogger(__name__)

EVERY_S = 1.0
FULL_CACHE = 0.95  # above it a server evicts sequences and computes them again
ROOM_IN_CACHE = 0.85


class Admission:
    """A bound that grows while the server has room and shrinks while it has a queue, as TCP's window does.

    It doubles until the server is full for the first time, then grows by a sixteenth. A policy that says how many
    requests it decodes at once is given so many from the first. Keep one for the life of a runner: what it has
    learned holds for the next run.
    """

    def __init__(self, start: int = 16) -> None:
        self.bound = start
        self._was_full = False

    def update(self, load: PolicyLoad, running: int, limit: int) -> int:
        """The new bound, given the load and how many episodes run; never below 1 or above the limit."""
        cache = load.kv_cache or 0.0
        if not self._was_full:
            self.bound = max(self.bound, load.places or 0)
        self.bound = min(self.bound, limit)
        if cache > FULL_CACHE or load.waiting > max(1, load.running // 8):
            self._was_full = True
            self.bound = max(1, min(self.bound, running) * 7 // 8)
        elif load.waiting == 0 and cache < ROOM_IN_CACHE and running >= self.bound:
            self.bound = min(limit, self.bound + max(1, self.bound // 16 if self._was_full else self.bound))
        return self.bound


async def admit_by_load(policy: ReportsLoad, slots: Slots, admission: Admission) -> None:
    """Keeps the number of places in the run stage to what the policy can take, until cancelled."""
    limit = slots.limit
    slots.resize(min(admission.bound, limit))
    while True:
        try:
            async with asyncio.timeout(EVERY_S):
                load = await policy.current_load()
        except Exception as error:  # noqa: BLE001 - a server that doesn't say how busy it is gets the bound it has
            _log.debug("no load from the policy: %r", error)
        else:
            slots.resize(admission.update(load, slots.used, limit))
        await asyncio.sleep(EVERY_S)
