"""The default sandbox: bubblewrap, without a daemon and without root.

What holds: own user, pid, network, ipc, uts and mount namespaces; no capabilities; an environment of its own
(also in /proc/1/environ); only /usr, a few files of /etc, the mounts and a private /work and /tmp are there;
limits on processes, memory a process and file size. As root, the sandbox runs as an unprivileged user.
What does not: each command of `exec` is a sandbox of its own over the same files, so it does not see the
processes of the shell; memory is limited for each process, not for all of them together; no seccomp filter;
a flaw of the kernel's is not contained.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from skyrl_gym.errors import SandboxError
from skyrl_gym.sandbox.local import PATH, LocalSandbox, Started

__all__ = ["BubblewrapSandbox", "bubblewrap_problem", "readable_by_sandbox"]

NOBODY = 65_534
START_TIMEOUT_S = 20.0
_ETC = (
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "nsswitch.conf",
    "passwd",
    "group",
    "ssl",
)
_NAMESPACES = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
_HARDENING = ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "sandbox", "--clearenv"]


def bubblewrap_problem() -> str | None:
    """Why bubblewrap can't be used here, with what to do; None if it can. It is tried, not guessed."""
    binary = shutil.which("bwrap")
    if binary is None:
        return "bubblewrap is not installed: sudo apt-get install bubblewrap"
    command = [binary, *_NAMESPACES, "--unshare-net", *_base_system(), "true"]
    try:
        tried = subprocess.run(command, env={"PATH": PATH}, capture_output=True, text=True, timeout=10, **_identity())
    except (OSError, subprocess.SubprocessError) as error:
        return f"bubblewrap does not start: {error}"
    if tried.returncode == 0:
        return None
    reason = tried.stderr.strip().splitlines()[-1:] or ["no reason given"]
    return (
        f"bubblewrap can't make namespaces here ({reason[0]}): allow unprivileged user namespaces "
        "(sysctl kernel.unprivileged_userns_clone=1; on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0; "
        "in a container: --security-opt seccomp=unconfined)"
    )


class BubblewrapSandbox(LocalSandbox):
    """Commands run by `bwrap` over a scratch folder."""

    backend: ClassVar[str] = "bubblewrap"

    async def start(self) -> BubblewrapSandbox:
        """Also proves that a command runs.

        Raises:
            SandboxError: bubblewrap is missing or refused; the message says what to do.
        """
        if shutil.which("bwrap") is None:
            raise SandboxError(str(bubblewrap_problem()))
        await super().start()
        self.capabilities = frozenset({"private:copy", "processes:rlimit", "memory:rlimit", "file_size:rlimit"})
        try:
            tried = await self.exec(["true"], timeout_s=START_TIMEOUT_S)
        except BaseException:
            await self.close()
            raise
        if tried.code != 0:
            await self.close()
            raise SandboxError(bubblewrap_problem() or f"the sandbox does not start: {tried.text.strip()[-300:]}")
        return self

    def _owner(self) -> int | None:
        return NOBODY if os.geteuid() == 0 else None

    async def _spawn(self, command: Sequence[str], env: Mapping[str, str]) -> Started:
        info_read, info_write = os.pipe()
        binary = shutil.which("bwrap") or "bwrap"
        arguments = [binary, "--info-fd", str(info_write), *self._arguments(env), *self._limited(command)]
        try:
            process = await asyncio.create_subprocess_exec(
                *arguments,
                # bwrap's own pid 1 keeps this environment readable inside.
                env={"PATH": PATH},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=(info_write,),
                **_identity(),
            )
        except OSError as error:
            os.close(info_read)
            raise SandboxError(f"bubblewrap does not start: {error}") from error
        finally:
            os.close(info_write)
        return Started(process, await _namespace_init(info_read, process.pid))

    def _arguments(self, env: Mapping[str, str]) -> list[str]:
        assert self._scratch is not None
        arguments = [*_NAMESPACES, *([] if self.spec.network else ["--unshare-net"]), *_HARDENING, *_base_system()]
        arguments += ["--bind", str(self._scratch / "tmp"), "/tmp"]
        arguments += ["--bind", str(self._scratch / "work"), self.spec.workdir]
        for number, mount in enumerate(self.spec.mounts):
            if mount.mode == "read_only":
                arguments += ["--ro-bind", mount.source, mount.target]
            elif mount.target != self.spec.workdir:
                arguments += ["--bind", str(self._copy_of(number)), mount.target]
        everything = {"PATH": PATH, "HOME": "/tmp", "LANG": "C.UTF-8", **env}
        for name, value in everything.items():
            arguments += ["--setenv", name, value]
        return [*arguments, "--chdir", self.spec.workdir]

    def _limited(self, command: Sequence[str]) -> list[str]:
        limits, mb = self.spec.limits, 1_048_576
        return [
            "prlimit",
            f"--nproc={limits.processes}",
            f"--data={limits.memory_mb * mb}",
            f"--fsize={limits.disk_mb * mb}",
            "--core=0",
            "--",
            *command,
        ]


def _base_system() -> list[str]:
    """A read-only system without the host's own files."""
    arguments = ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
    for name in ("bin", "sbin", "lib", "lib64", "lib32"):
        if os.path.islink(f"/{name}"):
            arguments += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            arguments += ["--ro-bind", f"/{name}", f"/{name}"]
    for name in _ETC:
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return arguments


def _identity() -> dict[str, Any]:
    """As root, another user first: the kernel's uid 0 passes checks even without capabilities."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


async def _namespace_init(descriptor: int, outer: int) -> int:
    """The process that is pid 1 inside, as the host sees it; killing it ends everything inside."""
    with os.fdopen(descriptor, "rb") as file:
        text = await asyncio.to_thread(file.read)
    with contextlib.suppress(ValueError, KeyError):
        return int(json.loads(text)["child-pid"])
    return outer  # bwrap failed before it forked; its own exit says so


def readable_by_sandbox(path: Path) -> bool:
    """Whether the user that a sandbox runs as can reach a host folder that is to be mounted."""
    if os.geteuid() != 0:
        return os.access(path, os.R_OK | os.X_OK)
    return all(folder.stat().st_mode & 0o001 for folder in (path, *path.parents))
