"""The container backend: Docker, or Podman by Docker's interface, with the files of an image.

What holds: the container's own processes, network (none unless asked for), ipc and host name; no capabilities and
no new privileges; a filter of system calls, Docker's own or, for Podman, that of `seccomp`; memory, swap, processes
and CPU by control groups, each read back after the start and named in `capabilities` only where it holds.
What does not: inside, commands are the image's user, mostly root, and can change all of its files; disk is not
limited; a command's daemon that empties its environment outlives the command, though not the sandbox; a flaw of the
kernel's or the engine's is not contained.

The image needs bash, and of coreutils or busybox what files take: cat, head, mkdir, tar.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

from skyrl_gym.errors import SandboxError, SandboxLost
from skyrl_gym.sandbox import engine, seccomp
from skyrl_gym.sandbox.backend import SandboxBackend
from skyrl_gym.sandbox.base import SandboxSpec, Snapshot
from skyrl_gym.sandbox.ledger import Entry, Ledger
from skyrl_gym.sandbox.output import CappedOutput
from skyrl_gym.sandbox.running import Pipes, Running, uninterrupted
from skyrl_gym.sandbox.sessions import MARK, SESSION_COMMAND, SESSION_ENV, ExecStream, Session

__all__ = ["DockerSandbox"]

T = TypeVar("T")
PULL_TIMEOUT_S = 1_800.0
END_S = 2.0
# The first process reaps orphans, and is out of reach of signals from inside. It starts none: a fork bomb can't end it.
_KEEPER = "exec 3<> <(:); while :; do read -r -t 0.5 -u 3; wait; wait -n; done"
_LIMITS = {
    "memory": ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    "processes": ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"),
    "cpu": ("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
}


class DockerSandbox(SandboxBackend):
    """A container, and sessions in it.

    Capabilities: `memory:cgroup`, `processes:cgroup` and `cpu:cgroup`, where they were found to hold; with private
    mounts `private:copy`.
    """

    backend: ClassVar[str] = "docker"

    def __init__(self, spec: SandboxSpec, ledger: Ledger) -> None:
        super().__init__(spec, ledger)
        self._engine: engine.Engine | None = None
        self._container: Any = None
        self._control: Session | None = None
        self._controlling = asyncio.Lock()
        self._idle: list[Session] = []
        self._sessions: set[Session] = set()
        self._name = ""
        self._image = ""
        self._origin: _ImageSnapshot | None = None

    async def _prepare(self, snapshot: Snapshot | None) -> None:
        if self.spec.image is None:
            raise SandboxError("the docker backend takes its files from an image: give SandboxSpec(image=...)")
        for mount in self.spec.mounts:
            if not await asyncio.to_thread(Path(mount.source).is_dir):
                raise SandboxError(f"no such folder to mount: {mount.source}")
        self._engine = await asyncio.to_thread(engine.connect)
        try:
            await _call(engine.reap, self._client)
            self._image = await self._find_image(self.spec.image) if snapshot is None else ""
        except BaseException:
            self._engine.close()
            raise

    async def _find_image(self, name: str) -> str:
        try:
            async with asyncio.timeout(PULL_TIMEOUT_S):
                return await asyncio.to_thread(engine.find_image, self._client, name)
        except TimeoutError:
            raise SandboxError(f"pulling {name} took longer than {PULL_TIMEOUT_S:g} s") from None

    async def _build(self, entry: Entry, snapshot: Snapshot | None) -> None:
        self._name = name = f"skyrl-{secrets.token_hex(8)}"
        self._origin = snapshot if isinstance(snapshot, _ImageSnapshot) else None
        image = self._origin.use() if self._origin else self._image
        entry.undo = partial(_undo, name, image if self._origin else None)
        self._container = await _call(self._create, image)
        await _call(self._container.start)
        held = [f"{kind}:cgroup" for kind in await self._held_limits()]
        private = [mount for mount in self.spec.mounts if mount.mode == "private"]
        self.capabilities = frozenset({*held, *({"private:copy"} if private else ())})
        if snapshot is None:
            for mount in private:
                await self.upload(Path(mount.source), mount.target)

    def _create(self, image: str) -> Any:
        assert self._engine is not None
        options = self._options()
        if not self._engine.name.startswith("Podman"):
            return self._client.containers.create(image, name=self._name, **options)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as filtering:  # Podman takes a file's name
            filtering.write(seccomp.profile())
            filtering.flush()
            options["security_opt"] = [*options["security_opt"], f"seccomp={filtering.name}"]
            return self._client.containers.create(image, name=self._name, **options)

    def _options(self) -> dict[str, Any]:
        limits, shown = self.spec.limits, [mount for mount in self.spec.mounts if mount.mode == "read_only"]
        return {
            "entrypoint": ["bash", "--norc", "--noprofile", "-c", _KEEPER],
            "command": [],
            "working_dir": self.spec.workdir,
            "environment": dict(self.spec.env),
            "volumes": {mount.source: {"bind": mount.target, "mode": "ro"} for mount in shown},
            "labels": engine.labels(),
            "hostname": "sandbox",
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
            "mem_limit": f"{limits.memory_mb}m",
            "memswap_limit": f"{limits.memory_mb}m",
            "pids_limit": limits.processes,
            **({"nano_cpus": int(limits.cpus * 1e9)} if limits.cpus else {}),
            **({} if self.spec.network else {"network_mode": "none"}),
        }

    async def _held_limits(self) -> list[str]:
        """Rootless engines take limits that they can't set without a word: what holds is what is read back."""
        limits = self.spec.limits
        wanted = {"memory": limits.memory_mb * 1_048_576, "processes": limits.processes}
        wanted |= {"cpu": int(limits.cpus * 100_000)} if limits.cpus else {}
        held = []
        session = await self.lend()
        for kind, value in wanted.items():
            found = CappedOutput(1_000)
            await session.run(["sh", "-c", f"cat {' '.join(_LIMITS[kind])} 2>/dev/null"], {}, b"", found)
            if found.value().split()[:1] == [str(value).encode()]:
                held.append(kind)
        self.take_back(session)
        return held

    async def _save(self) -> Snapshot:
        entry = self._ledger.enter(f"{self.backend} snapshot")
        tag = secrets.token_hex(8)
        entry.undo = partial(_undo, None, f"skyrl-snapshot:{tag}")
        try:
            conf = {"Labels": engine.labels()}
            image = await _call(self._container.commit, repository="skyrl-snapshot", tag=tag, conf=conf)
        except BaseException:
            await _call(entry.destroy)
            self._ledger.strike(entry)
            self._check_open()
            raise
        return _ImageSnapshot(self.spec, image.id, entry, self._ledger)

    async def _spawn(self, command: Sequence[str], env: Mapping[str, str], interactive: bool) -> Running:
        mark = f"{MARK}={secrets.token_hex(8)}"
        name, _, value = mark.partition("=")
        if interactive:
            return await self._with_stream(command, {**env, name: value}, partial(_Talking, self, mark))
        return _Asked(self, mark, command, {**env, name: value})

    async def _demolish(self, entry: Entry) -> None:
        for session in tuple(self._sessions):
            await self.drop(session)
        self._idle, self._control = [], None
        if self._name:
            await _call(engine.remove_container, self._client, self._name)
        if self._origin is not None:
            await self._origin.release()
        self._container, self._name, self._origin, entry.undo = None, "", None, None
        if self._closing is not None and self._engine is not None:
            self._engine.close()

    @property
    def _client(self) -> Any:
        assert self._engine is not None
        return self._engine.client

    def _died(self, code: int) -> bool:
        return False  # commands say so themselves

    async def sweep(self, mark: str, spare: Any) -> None:
        """Kills processes by their mark; a container that is gone has none left."""
        async with self._controlling:
            for _ in range(2):  # the command may have killed the session that is there
                try:
                    self._control = self._control or await self._open_session()
                    async with asyncio.timeout(END_S):
                        return await self._control.sweep(mark, spare)
                except (SandboxError, TimeoutError):
                    await self.drop(self._control)
                    self._control = None

    async def lend(self) -> Session:
        """A session that nobody uses."""
        return self._idle.pop() if self._idle else await self._open_session()

    def take_back(self, session: Session) -> None:
        """For the next command."""
        self._idle.append(session)

    async def drop(self, session: Session | None) -> None:
        """Ends one that is of no use any more."""
        if session is not None:
            self._sessions.discard(session)
            await session.close()

    async def runs(self) -> bool:
        """Whether the container still does; the engine's word for it comes late."""
        try:
            session = await self._open_session()
            await session.run(["true"], {}, b"", CappedOutput(2))
        except SandboxError:
            return False
        self.take_back(session)
        return True

    async def _open_session(self) -> Session:
        return await self._with_stream(SESSION_COMMAND, SESSION_ENV, self._keep_session)

    def _keep_session(self, stream: ExecStream) -> Session:
        session = Session(Pipes(stream, stream), stream.close)
        self._sessions.add(session)
        return session

    async def _with_stream(self, command: Sequence[str], env: Mapping[str, str], owner: Callable[[ExecStream], T]) -> T:
        """The owner of a new stream; the stream is closed if it does not come to one."""
        stream: ExecStream | None = None
        try:
            stream = await self._stream(command, env)
            return owner(stream)
        except BaseException:
            if stream is not None:
                await stream.close()
            raise

    async def _stream(self, command: Sequence[str], env: Mapping[str, str]) -> ExecStream:
        assert self._engine is not None
        made = await _call(
            self._client.api.exec_create,
            self._container.id,
            list(command),
            stdin=True,
            environment=dict(env),
            workdir=self.spec.workdir,
        )
        return ExecStream(*await self._engine.attach(made["Id"]))


class _ImageSnapshot:
    """A committed image. It stays as long as a sandbox is made of it: Podman would remove that too."""

    backend: str = "docker"

    def __init__(self, spec: SandboxSpec, image: str, entry: Entry, ledger: Ledger) -> None:
        self.spec = spec
        self._image = image
        self._entry: Entry | None = entry
        self._remove = entry.destroy
        self._ledger = ledger
        self._users = 1

    def use(self) -> str:
        """The image's id, for one more user."""
        self._users += 1
        return self._image

    async def release(self) -> None:
        """One user less."""
        self._users -= 1
        if self._users == 0:
            await _call(self._remove)

    @property
    def closed(self) -> bool:
        """Whether it has been given up."""
        return self._entry is None

    async def close(self) -> None:
        """Gives it up."""
        entry, self._entry = self._entry, None
        if entry is not None:
            await self.release()
            self._ledger.strike(entry)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Marked(Running):
    """A command and all that it started, known by a mark in their environment."""

    def __init__(self, box: DockerSandbox, mark: str) -> None:
        self._box = box
        self._mark = mark

    async def sweep(self, spare_driver: bool) -> None:
        await self._box.sweep(self._mark, "driver" if spare_driver else "supervisor")

    async def hold(self) -> None:
        """The engine stops the whole container while it commits."""

    async def go_on(self) -> None:
        """Likewise."""


class _Asked(_Marked):
    """Run by a session."""

    def __init__(self, box: DockerSandbox, mark: str, command: Sequence[str], env: Mapping[str, str]) -> None:
        super().__init__(box, mark)
        self._command = command
        self._env = env
        self._asked: asyncio.Task[int] | None = None
        self._session: Session | None = None

    @property
    def pipes(self) -> Pipes:
        raise TypeError("a command of a session can't be talked to")

    async def communicate(self, stdin: bytes, output: CappedOutput) -> int:
        while True:
            self._session = await uninterrupted(self._box.lend())
            self._asked = asyncio.create_task(self._session.run(self._command, self._env, stdin, output))
            try:
                return await asyncio.shield(self._asked)
            except SandboxLost:
                if not await self._box.runs():
                    raise SandboxLost("the container ended while a command ran") from None
                if self._session.began:
                    return 137  # it has killed even its session
                await self._box.drop(self._session)  # an earlier one had

    async def end(self) -> None:
        session, self._session = self._session, None
        if session is None or self._asked is None:
            return
        await self._box.sweep(self._mark, "nothing")
        await asyncio.wait({self._asked}, timeout=END_S)
        if self._asked.done() and self._asked.exception() is None:
            self._box.take_back(session)
            return
        self._asked.cancel()
        await asyncio.gather(self._asked, return_exceptions=True)
        await self._box.drop(session)


class _Talking(_Marked):
    """Has a stream of its own."""

    def __init__(self, box: DockerSandbox, mark: str, stream: ExecStream) -> None:
        super().__init__(box, mark)
        self._stream = stream

    @property
    def pipes(self) -> Pipes:
        return Pipes(self._stream, self._stream)

    async def communicate(self, stdin: bytes, output: CappedOutput) -> int:
        raise TypeError("a command that is talked to has no end to wait for")

    async def end(self) -> None:
        await self._box.sweep(self._mark, "nothing")
        await self._stream.close()


async def _call(work: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Asks the engine, in a thread, and waits for the answer whatever happens: what it has made must be known."""
    import docker

    try:
        return await uninterrupted(asyncio.to_thread(work, *arguments, **named))
    except docker.errors.NotFound as error:
        raise SandboxLost(f"the container is gone: {error}") from error
    except (docker.errors.DockerException, OSError) as error:
        raise SandboxError(f"the container engine failed: {error}") from error


def _undo(container: str | None, image: str | None) -> None:
    """With a client of its own: it may be needed when there is no event loop, and no sandbox, any more."""
    with closing(engine.connect()) as there:
        if container is not None:
            engine.remove_container(there.client, container)
        if image is not None:
            engine.remove_image(there.client, image)
