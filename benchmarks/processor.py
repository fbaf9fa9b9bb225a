"""Seconds of CPU of this process and of all that it starts, as a control group counts them.

What `getrusage` tells of children leaves out whatever a killed pid namespace took along: its first process was to reap
it, and did not live to pass it on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from skyrl_gym.sandbox.cgroups import ControlGroup, hierarchy, memberships, mounts

__all__ = ["processor_time"]

MICRO, NANO = 1e-6, 1e-9


@contextmanager
def processor_time() -> Iterator[Callable[[], float] | None]:
    """Meanwhile this process is in a group of its own: what tells the seconds used; None where there are no groups."""
    groups, mounted, member_of = hierarchy(), mounts(), memberships()
    if groups is None:
        yield None
    elif groups.version == 1:
        own = mounted["cpuacct"] / member_of["cpuacct"].lstrip("/")
        with _member(own, own) as made:
            yield lambda: int((made / "cpuacct.usage").read_text()) * NANO
    else:
        above = groups.parents["memory"]  # those of the sandboxes are below it too
        with _member(above, mounted["cgroup2"] / member_of[""].lstrip("/")):
            yield lambda: int((above / "cpu.stat").read_text().split()[1]) * MICRO


@contextmanager
def _member(above: Path, own: Path) -> Iterator[Path]:
    made = above / f"measured-{os.getpid()}"
    made.mkdir()
    try:
        (made / "cgroup.procs").write_text("0")
        yield made
    finally:
        (own / "cgroup.procs").write_text("0")
        ControlGroup((made,), frozenset()).remove()  # what was killed last may take a moment
