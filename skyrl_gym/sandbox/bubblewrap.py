"""The default sandbox: bubblewrap, without a daemon and without root.

What holds: own user, pid, network, ipc, uts and mount namespaces; no capabilities and no further user namespaces;
a filter of system calls (`skyrl_gym.sandbox.seccomp`); an environment of its own (also in /proc/1/environ); only
/usr, a few files of /etc and the mounts are there. All that is written lies in memory, at most `disk_mb`, and goes
when the sandbox goes. Processes are limited for the sandbox as a whole. As root, the sandbox runs as an unprivileged
user.
Where the kernel gives us control groups (`skyrl_gym.sandbox.cgroups`), memory is limited for the sandbox as a whole,
files in it included, and CPU time by `Limits.cpus`; elsewhere memory is for each process, and CPU time is not.
What does not hold: /proc/meminfo shows the host's; a flaw of the kernel's is not contained.

A command of `exec` has a pid namespace of its own: it shares files and network with the shell, not processes.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, ClassVar

from skyrl_gym.errors import SandboxError, SandboxLost
from skyrl_gym.sandbox import idmapped, namespaces, seccomp
from skyrl_gym.sandbox.backend import SandboxBackend, fits
from skyrl_gym.sandbox.base import ExecResult, ExecStatus, Mount, SandboxSpec, Snapshot
from skyrl_gym.sandbox.cgroups import ControlGroup, hierarchy
from skyrl_gym.sandbox.children import Child, spawn
from skyrl_gym.sandbox.enclosed import Entered, Place, Placed
from skyrl_gym.sandbox.ledger import Entry, Ledger
from skyrl_gym.sandbox.namespaces import ENVIRONMENT
from skyrl_gym.sandbox.output import CappedOutput
from skyrl_gym.sandbox.processes import alive, kill, kill_tree
from skyrl_gym.sandbox.running import Running, in_memory, pipe, reap, uninterrupted
from skyrl_gym.sandbox.sessions import SESSION_COMMAND, SESSION_ENV, Session
from skyrl_gym.sandbox.snapshots import FileSnapshot
from skyrl_gym.sandbox.status import bubblewrap_limits, bubblewrap_problem, can_overlay

__all__ = ["BubblewrapSandbox", "readable_by_sandbox"]

DYING_S = 0.5
PLACES = 2  # for the shell, and for what reads and writes files


def readable_by_sandbox(path: Path) -> bool:
    """Whether the user that a sandbox runs as can reach a host folder that is to be mounted."""
    if os.geteuid() != 0:
        return os.access(path, os.R_OK | os.X_OK)
    return all(folder.stat().st_mode & 0o001 for folder in (path, *path.parents))


@dataclass
class _Holder:
    """The process that keeps the namespaces.

    `init` is the first process of its pid namespace, as the host sees it, once that is known.
    """

    process: Child
    init: int | None = None
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask(self, request: str) -> list[str]:
        """The lines that it answers.

        Raises:
            SandboxLost: it has ended.
        """
        async with self.asking:
            self.process.stdin.write(f"{request}\0".encode())
            return await self.heard()

    async def heard(self) -> list[str]:
        """The lines that it says before it is ready for a request.

        Raises:
            SandboxLost: it has ended.
        """
        lines: list[str] = []
        while line := await self.process.stdout.readline():
            lines.append(line.decode(errors="replace").strip())
            if lines[-1] == "ready":
                return lines[:-1]
        raise SandboxLost("; ".join(lines[-3:]) or "bubblewrap ended without a word")


class BubblewrapSandbox(SandboxBackend):
    """A holder of namespaces, entered by each command.

    Capabilities: `processes:rlimit`, `disk:tmpfs`; `memory:cgroup` and, when asked for, `cpu:cgroup`, or
    `memory:rlimit` where there are no control groups; `seccomp` where this machine's system calls are known; with
    private mounts `private:overlay` (copy-on-write), or `private:copy` where one of them had to be copied.
    """

    backend: ClassVar[str] = "bubblewrap"
    _holder: _Holder | None = None
    _overlaid: frozenset[int] = frozenset()
    _files: Session | None = None
    _group: ControlGroup | None = None

    def __init__(self, spec: SandboxSpec, ledger: Ledger) -> None:
        super().__init__(spec, ledger)
        self._file_lock = asyncio.Lock()
        self._places: list[Place] = []  # for commands that the holder can be asked to start

    async def _build(self, entry: Entry, snapshot: Snapshot | None) -> None:
        for name in namespaces.PACKAGES:
            namespaces.program(name)
        mounts = self.spec.mounts
        private = {number for number, mount in enumerate(mounts) if mount.mode == "private"}
        shown = _shown(mounts)
        await self._make_group(entry)
        await self._start_holder(entry, shown)
        saved = snapshot if isinstance(snapshot, FileSnapshot) else None
        if saved is not None:
            await asyncio.to_thread(
                saved.put, [*self._enter(), *namespaces.unpack()], ENVIRONMENT, started=entry.pids.add
            )
        wanted = private if saved is None else saved.overlaid
        self._overlaid = await self._overlay(wanted, shown.keys()) if wanted else frozenset()
        if saved is not None and self._overlaid != saved.overlaid:
            raise SandboxError("folders that were overlaid when the snapshot was taken can't be overlaid now")
        for number in private - self._overlaid if saved is None else ():
            await asyncio.to_thread(self._copy, number)
        how = {"private:copy" if private - self._overlaid else "private:overlay"} if private else set()
        self.capabilities = bubblewrap_limits(self._group.held if self._group else ()) | how

    async def _save(self) -> FileSnapshot:
        private = (number for number, mount in enumerate(self.spec.mounts) if mount.mode == "private")
        layers = [f"{number}/{'upper' if number in self._overlaid else 'all'}" for number in private]
        command = [*self._enter(), *namespaces.pack(layers)]
        try:
            return await asyncio.to_thread(
                FileSnapshot.taken, self.backend, self.spec, command, ENVIRONMENT, self._overlaid
            )
        except SandboxError:
            self._check_open()  # it died meanwhile
            raise

    async def _overlay(self, wanted: Collection[int], shown: Collection[int]) -> frozenset[int]:
        """Those of the private mounts that could be overlaid."""
        assert self._holder is not None
        lower = await asyncio.to_thread(self._lower, set(wanted), set(shown))
        return frozenset(map(int, await self._holder.ask(namespaces.overlay_all(lower))))

    def _lower(self, wanted: set[int], shown: set[int]) -> set[int]:
        """Those of the private mounts whose folders are there to be overlaid."""
        if not can_overlay():
            return set()
        return wanted & shown | self._attach(wanted - shown)

    async def _make_group(self, entry: Entry) -> None:
        entry.undo = self._remove_group
        if groups := await asyncio.to_thread(hierarchy):
            self._group = groups.group(self.spec.limits)

    def _remove_group(self) -> None:
        if self._group is not None:
            self._group.remove()
            self._group = None

    async def _start_holder(self, entry: Entry, shown: Mapping[int, str]) -> None:
        with pipe() as (info, writer):
            try:
                await uninterrupted(self._spawn_holder(entry, shown, writer))
                await self._learn_first_process(entry, info.fileno())
                assert self._holder is not None
                await self._holder.heard()
            except BaseException as error:
                # Before the pipe is closed: bubblewrap would end by that, and leave its child waiting for ever.
                await uninterrupted(self._demolish(entry))
                if isinstance(error, SandboxLost):
                    raise SandboxError(await asyncio.to_thread(bubblewrap_problem) or str(error)) from None
                raise

    async def _spawn_holder(self, entry: Entry, shown: Mapping[int, str], info: BinaryIO) -> None:
        with info:
            for _ in range(PLACES):
                self._places.append(Place(seccomp.program()))
            given = [number for place in self._places for number in place.descriptors]
            command = self._joining(namespaces.holder(self.spec, shown, info.fileno(), given))
            self._holder = _Holder(await spawn(*command, env=ENVIRONMENT, pass_fds=(info.fileno(), *given)))
        for place in self._places:
            place.inherited()
        entry.pids.add(self._holder.process.pid)

    async def _learn_first_process(self, entry: Entry, info: int) -> None:
        assert self._holder is not None
        if text := await _first_object(info):
            # This one is to be killed: the outer process, killed first, would leave it behind as a zombie.
            self._holder.init = json.loads(text)["child-pid"]
            entry.pids = {self._holder.init}

    def _attach(self, numbers: set[int]) -> set[int]:
        """As root, shows the holder root's folders as its own; those that the kernel won't show so are left out."""
        sources = {number: self.spec.mounts[number].source for number in numbers}
        ours = {number: source for number, source in sources.items() if os.stat(source).st_uid == 0}
        if not ours or os.geteuid() != 0:
            return set()
        assert self._holder is not None and self._holder.init is not None
        try:
            idmapped.attach({f"/lower/{number}": source for number, source in ours.items()}, self._holder.init)
        except OSError:
            return set()
        return set(ours)

    def _copy(self, number: int) -> None:
        """By `tar` through a pipe: the reader has the rights of the present user, the writer those of the sandbox."""
        source = self.spec.mounts[number].source
        pack = [namespaces.program("tar"), "-C", source, "-cf", "-", "."]
        unpack = [*self._enter(), "tar", "-C", f"/box/{number}/all", "--no-same-owner", "-xf", "-"]
        assert self._entry is not None
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(pack, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=errors) as packing,
            subprocess.Popen(unpack, env=ENVIRONMENT, stdin=packing.stdout, stderr=errors) as unpacking,
        ):
            helpers = {packing.pid, unpacking.pid}
            self._entry.pids |= helpers
            assert packing.stdout is not None
            unpacking.wait()
            packing.stdout.close()  # so that it ends when nobody reads any more
            packing.wait()
            self._entry.pids -= helpers
            if packing.returncode != 0 or unpacking.returncode != 0:
                errors.seek(0)
                raise SandboxError(f"can't copy {source}: {errors.read(2_000).decode(errors='replace').strip()}")

    def _enter(self) -> list[str]:
        assert self._holder is not None and self._holder.init is not None
        return self._joining(namespaces.enter(self._holder.init, network=self.spec.network))

    def _joining(self, command: list[str]) -> list[str]:
        return command if self._group is None else self._group.joining(command)

    async def _spawn(self, command: Sequence[str], env: Mapping[str, str], interactive: bool) -> Running:
        assert self._holder is not None
        # Not as arguments, which every user of the machine can read.
        layers = self._overlaid if command is SESSION_COMMAND else ()
        options = "\0".join(namespaces.command_options(self.spec, env, layers)).encode()
        if interactive and (free := [place for place in self._places if place.free]):
            return await self._place(self._holder, free[0], command, options)
        files = {"--args": options}
        if filtering := seccomp.program():
            files["--seccomp"] = filtering
        with ExitStack() as held:
            opened = {option: held.enter_context(in_memory(data)) for option, data in files.items()}
            given = [part for option, descriptor in opened.items() for part in (option, str(descriptor))]
            command = [*self._enter(), *namespaces.limited_bwrap(self.spec.limits), *given, "--", *command]
            return Entered(await spawn(*command, env=ENVIRONMENT, pass_fds=tuple(opened.values())))

    async def _place(self, holder: _Holder, place: Place, command: Sequence[str], options: bytes) -> Running:
        assert holder.init is not None
        number = int((await holder.ask(place.request(options, command)))[-1])
        return Placed(place, await place.opened(), holder.init, number)

    async def inspect(
        self,
        command: list[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        max_bytes: int = 1_048_576,
    ) -> ExecResult:
        """By a session of its own, whose processes no command of the shell or of `exec` can see."""
        if not fits(command):  # as `exec` says it
            return await self.exec(command, timeout_s=timeout_s, stdin=stdin, env=env, max_bytes=max_bytes)
        began = time.monotonic()
        output = CappedOutput(max_bytes)
        async with self._file_lock:
            self._files = self._files or await self._open_session()
            code: int | None = None
            try:
                async with asyncio.timeout(timeout_s) as clock:
                    code = await self._files.run(command, env or {}, stdin, output)
            except TimeoutError:
                if not clock.expired():
                    raise
            except SandboxLost as error:
                await self._check_lives()
                raise OSError(errno.EAGAIN, f"the sandbox's processes or memory are used up ({error})") from error
            finally:
                if code is None:
                    session, self._files = self._files, None
                    await uninterrupted(session.close())
        status: ExecStatus = "timeout" if code is None else "ok"
        return ExecResult(output.value(), code, status, time.monotonic() - began, output.dropped)

    def layer(self, target: str) -> str | None:
        """The upper folder of an overlaid mount, which only the session of `inspect` is shown."""
        mounted = (number for number in self._overlaid if self.spec.mounts[number].target == target)
        return next((namespaces.layer(number) for number in mounted), None)

    async def _open_session(self) -> Session:
        running = await self._begin(SESSION_COMMAND, SESSION_ENV, interactive=True)
        return Session(running.pipes, lambda: self._finish(running))

    async def _tear_down(self, entry: Entry) -> None:
        self._files = None
        self._kill_first()  # and with it whatever runs inside
        await super()._tear_down(entry)

    def _kill_first(self) -> None:
        # Once it has been reaped, its id may be somebody else's.
        holder = self._holder
        if holder is not None and holder.init is not None and holder.process.returncode is None:
            kill({holder.init})

    async def _demolish(self, entry: Entry) -> None:
        while self._places:
            self._places.pop().close()
        if self._holder is not None:
            await self._end_holder(self._holder, entry)
            self._holder = None
        await asyncio.to_thread(self._remove_group)

    async def _end_holder(self, holder: _Holder, entry: Entry) -> None:
        self._kill_first()
        # Before its first process is known, or while a mount is being copied, there is more to be killed.
        for pid in entry.pids - {holder.init}:
            await asyncio.to_thread(kill_tree, pid)
        await reap(holder.process)
        entry.pids.clear()

    def _died(self, code: int) -> bool:
        return code < 0 or not self._holds()

    def _check_open(self) -> None:
        super()._check_open()
        if not self._holds():
            raise SandboxLost("the sandbox died")

    async def _check_lives(self) -> None:
        """As `_check_open`, where something in the sandbox has ended: by itself, or as the first of all."""
        if self._holder is not None:
            await asyncio.wait({self._holder.process.ended}, timeout=DYING_S)
        self._check_open()

    def _holds(self) -> bool:
        return self._holder is not None and self._holder.init is not None and alive(self._holder.init)


def _shown(mounts: Sequence[Mount]) -> dict[int, str]:
    """The host folders that the holder sees, by the number of their mount; the others are copied."""
    for mount in mounts:
        if not Path(mount.source).is_dir():
            raise SandboxError(f"no such folder to mount: {mount.source}")
        if mount.mode == "read_only" and not readable_by_sandbox(Path(mount.source).resolve()):
            raise SandboxError(f"the sandbox's user can't reach {mount.source}: chmod o+x it and the folders above it")
    seen = (number for number, mount in enumerate(mounts) if mount.mode == "read_only" or _can_be_lower(mount))
    return {number: mounts[number].source for number in seen}


def _can_be_lower(mount: Mount) -> bool:
    """Whether a folder can be overlaid: the sandbox's user must reach it, and own it to write over its files."""
    source, user = Path(mount.source), namespaces.NOBODY if os.geteuid() == 0 else os.geteuid()
    return source.stat().st_uid == user and readable_by_sandbox(source.resolve())


async def _first_object(descriptor: int) -> bytes:
    """A JSON object that arrives in pieces; nothing if the writer ends before."""
    data = b""
    while b"}" not in data:
        await _readable(descriptor)
        piece = os.read(descriptor, 4_096)
        if not piece:
            return b""
        data += piece
    return data


async def _readable(descriptor: int) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
