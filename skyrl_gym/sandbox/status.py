"""Which backends work here, and why not."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Container, Iterable
from dataclasses import dataclass

from skyrl_gym.errors import ConfigError, SandboxError
from skyrl_gym.sandbox import engine, namespaces, seccomp
from skyrl_gym.sandbox.cgroups import hierarchy

__all__ = [
    "BACKENDS",
    "BackendStatus",
    "bubblewrap_limits",
    "bubblewrap_problem",
    "can_overlay",
    "check_backend",
    "unknown_backend",
]

BACKENDS = ("bubblewrap", "docker", "process")
PROBE_S = 10.0
_ALLOW = (
    "allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1; on Ubuntu "
    "kernel.apparmor_restrict_unprivileged_userns=0; in a container: --security-opt seccomp=unconfined)"
)
_NOT_GROUPED = (
    "memory for each process, CPU not limited (in all by control groups: as root, or by starting skyrl with "
    "`systemd-run --user --scope -p Delegate=yes`)"
)


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """Whether a backend can be used here: what was found, and, where it can't, what to do."""

    name: str
    available: bool
    detail: str
    remedy: str = ""
    version: str = ""
    capabilities: frozenset[str] = frozenset()

    @property
    def problem(self) -> str | None:
        """Detail and remedy in one line; None where it can be used."""
        return None if self.available else f"{self.detail}: {self.remedy}"


def check_backend(name: str) -> BackendStatus:
    """The state of a backend. It is tried, not guessed.

    Raises:
        ConfigError: no such backend.
    """
    match name:
        case "bubblewrap":
            return _check_bubblewrap()
        case "docker":
            detail, remedy, version = engine.problem()
            return BackendStatus(name, not detail, detail or version, remedy, version)
        case "process":
            return BackendStatus(name, True, "always there; it does not isolate")
    raise unknown_backend(name)


def unknown_backend(name: str) -> ConfigError:
    """The error for a name that is no backend."""
    return ConfigError(f"unknown sandbox backend {name!r}; known: {', '.join(BACKENDS)}")


def bubblewrap_problem() -> str | None:
    """Why bubblewrap can't be used here, with what to do; None if it can."""
    return check_backend("bubblewrap").problem


def _check_bubblewrap() -> BackendStatus:
    missing = [program for program in namespaces.PACKAGES if shutil.which(program) is None]
    if missing:
        detail = f"programs are missing ({', '.join(missing)})"
        return BackendStatus("bubblewrap", False, detail, namespaces.install(*missing))
    try:
        version = _run([namespaces.program("bwrap"), "--version"]).stdout.strip()
        tried = _run(namespaces.probe())
    except (OSError, subprocess.SubprocessError) as error:
        return BackendStatus("bubblewrap", False, f"bubblewrap does not start ({error})", _ALLOW)
    if tried.returncode == 0:
        return _working_bubblewrap(version, "overlay" in tried.stdout.split())
    reason = (tried.stderr.strip().splitlines() or ["no reason given"])[-1]
    detail = f"bubblewrap can't make namespaces here ({reason})"
    return BackendStatus("bubblewrap", False, detail, _ALLOW, version)


def _working_bubblewrap(version: str, overlays: bool) -> BackendStatus:
    groups = hierarchy()
    held = {*bubblewrap_limits(groups.parents if groups else ()), "private:overlay" if overlays else "private:copy"}
    folders = "private folders are overlaid" if overlays else "private folders are copied (overlaid since Linux 6.6)"
    calls = "system calls filtered" if "seccomp" in held else "system calls not filtered"
    limits = f"processes and disk limited in all, {_grouped(groups.parents) if groups else _NOT_GROUPED}"
    detail = f"{version}, user namespaces work; {folders}; {calls}; {limits}"
    return BackendStatus("bubblewrap", True, detail, version=version.split()[-1], capabilities=frozenset(held))


def _grouped(controllers: Container[str]) -> str:
    return f"memory {'and CPU ' if 'cpu' in controllers else ''}in all by control groups"


def bubblewrap_limits(grouped: Iterable[str]) -> frozenset[str]:
    """What bubblewrap sandboxes hold on this kind of machine, whatever their mounts.

    Args:
        grouped: what control groups hold, "memory" or "cpu".
    """
    memory = {f"{name}:cgroup" for name in grouped} or {"memory:rlimit"}
    return frozenset({"processes:rlimit", "disk:tmpfs", *memory, *(["seccomp"] if seccomp.program() else [])})


def can_overlay() -> bool:
    """Whether private folders can be overlaid, tried once for each bubblewrap."""
    try:
        return _can_overlay(namespaces.program("bwrap"))
    except SandboxError:
        return False


@functools.cache
def _can_overlay(bwrap: str) -> bool:
    status = check_backend("bubblewrap")
    if not status.available:  # not to be remembered: it may have taken too long
        raise SandboxError(f"{bwrap}: {status.detail}")
    return "private:overlay" in status.capabilities


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=namespaces.ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PROBE_S,
    )
