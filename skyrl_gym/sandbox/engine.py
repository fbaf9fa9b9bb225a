"""Docker's engine, or Podman's by the same interface: what is found of it, and what is left over in it.

Everything that is made here bears labels that name the process which made it. What a process that was killed has
left behind is found by them and removed by the next one on the same machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from skyrl_gym.errors import MissingDependency, SandboxError

__all__ = [
    "LABEL",
    "connect",
    "find_image",
    "image_digests",
    "labels",
    "problem",
    "reap",
    "remove_container",
    "remove_image",
]

LABEL = "skyrl_gym.owner"
TIMEOUT_S = 120
INSTALL = "start Docker (dockerd) or Podman (podman system service), or name its socket in DOCKER_HOST"


@dataclass(frozen=True)
class Engine:
    """A client of an engine, the address that it is at, and what it calls itself."""

    client: Any
    address: str
    name: str

    def close(self) -> None:
        """Closes the client."""
        self.client.close()

    async def attach(self, exec_id: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Starts a prepared exec, and becomes the other end of its streams.

        The SDK does this too, but leaves its connection open for ever.

        Raises:
            SandboxError: the engine refuses, or is reached in a way that is not supported.
        """
        reader, writer = await self._connection()
        body = b'{"Detach": false, "Tty": false}'
        head = (
            f"POST /v{self.client.api.api_version}/exec/{exec_id}/start HTTP/1.1\r\nHost: engine\r\n"
            "Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        try:
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            if answer.split()[1] not in (b"101", b"200"):
                text = (await reader.read(2_000)).decode(errors="replace").strip()
                raise SandboxError(f"the container engine starts no process: {text}")
        except BaseException as error:
            writer.close()
            if isinstance(error, asyncio.IncompleteReadError | ConnectionError):
                raise SandboxError("the container engine hung up") from error
            raise
        return reader, writer

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self.address)
        match parts.scheme:
            case "unix" | "http+unix":
                return await asyncio.open_unix_connection(parts.netloc + parts.path)
            case "tcp" | "http" if parts.hostname:
                return await asyncio.open_connection(parts.hostname, parts.port or 2375)
        raise SandboxError(
            f"an engine is reached by unix:// or tcp://, not by {self.address}; forward it by ssh -L, say"
        )


def connect() -> Engine:
    """The engine named in DOCKER_HOST, else a Docker or Podman whose socket is in its usual place.

    Raises:
        MissingDependency: the SDK is not installed.
        SandboxError: no engine answers.
    """
    try:
        import docker
    except ImportError:
        raise MissingDependency.extra("docker", "docker") from None
    places = [os.environ["DOCKER_HOST"]] if os.environ.get("DOCKER_HOST") else list(_sockets())
    if not places:
        raise SandboxError(f"no container engine is running here: {INSTALL}")
    reasons = []
    for place in places:
        try:
            _knock(place)  # the SDK leaves a connection open where nobody answers
            client = docker.DockerClient(base_url=place, version="auto", timeout=TIMEOUT_S)
            return Engine(client, place, _name_of(client))
        except (docker.errors.DockerException, OSError) as error:
            reasons.append(f"{place}: {error}")
    raise SandboxError(f"no container engine answers ({'; '.join(reasons)}): {INSTALL}")


def problem() -> tuple[str, str, str]:
    """What is wrong, what to do about it, and the version of an engine that answers: first and last are exclusive."""
    try:
        with closing(connect()) as engine:
            return "", "", f"{engine.name} at {engine.address}"
    except MissingDependency as error:
        what, _, remedy = str(error).partition("; it comes with: ")
        return what, remedy, ""
    except SandboxError as error:
        return str(error).removesuffix(f": {INSTALL}"), INSTALL, ""


def find_image(client: Any, name: str) -> str:
    """The id of an image: one that is there, else built where `name` is a folder with a Dockerfile, else pulled.

    Args:
        client: of the engine.
        name: with a tag, a digest or neither, which stands for "latest"; or the absolute path of a folder.

    Raises:
        SandboxError: it can't be had.
    """
    import docker

    try:
        tag = _tag(name)
        with contextlib.suppress(docker.errors.ImageNotFound):
            return str(client.images.get(tag).id)
        if tag != name:
            return str(client.images.build(path=name, tag=tag, rm=True)[0].id)
        return str(client.images.pull(*_repository(name)).id)
    except (docker.errors.DockerException, OSError, TypeError) as error:
        raise SandboxError(f"the image {name!r} can't be had: {error}") from error


def image_digests(names: Iterable[str]) -> dict[str, str | None]:
    """By image name, the digest under which its registry has it, else its id; None where it is not on this machine."""
    wanted = dict.fromkeys(names)
    if not wanted:
        return {}
    try:
        with closing(connect()) as there:
            return {name: _image_digest(there.client, name) for name in wanted}
    except (MissingDependency, SandboxError):
        return wanted


def _image_digest(client: Any, name: str) -> str | None:
    import docker

    try:
        image = client.images.get(_tag(name))
    except (docker.errors.DockerException, OSError):
        return None
    published = image.attrs.get("RepoDigests") or ()
    return next((digest.partition("@")[2] for digest in published), str(image.id))


def _tag(name: str) -> str:
    """What the engine knows an image as; one built of a folder, by the folder's content."""
    return f"skyrl-built:{_digest(Path(name))}" if Path(name).is_absolute() else name


def _repository(name: str) -> tuple[str, str | None]:
    """A registry's address may hold a colon too."""
    if "@" in name or ":" in name.rpartition("/")[2]:
        return name, None
    return name, "latest"


def labels() -> dict[str, str]:
    """What marks a thing as this process's."""
    return {LABEL: ":".join((*_machine(), str(os.getpid()), _started(os.getpid())))}


def reap(client: Any) -> int:
    """Removes what processes of this machine that are no more have left; how many things that was."""
    wanted = {"label": LABEL}
    containers = [row["Id"] for row in client.api.containers(all=True, filters=wanted) if _orphaned(row)]
    images = [row["Id"] for row in client.api.images(filters=wanted) if _orphaned(row)]
    for container in containers:
        remove_container(client, container)
    for image in images:
        remove_image(client, image)
    return len(containers) + len(images)


def remove_container(client: Any, name: str) -> None:
    """Removes a container, whatever runs in it; one that is gone already is fine."""
    import docker

    with contextlib.suppress(docker.errors.NotFound):
        client.api.remove_container(name, force=True, v=True)


def remove_image(client: Any, name: str) -> None:
    """Removes an image; one that is gone already is fine."""
    import docker

    with contextlib.suppress(docker.errors.NotFound):
        client.api.remove_image(name, force=True)


def _name_of(client: Any) -> str:
    version = client.version()
    parts = [part["Name"] for part in version.get("Components") or ()]
    return f"{'Podman' if 'Podman Engine' in parts else 'Docker'} {version['Version']}"


def _knock(address: str) -> None:
    parts = urlsplit(address)
    if parts.scheme in ("unix", "http+unix"):
        with closing(socket.socket(socket.AF_UNIX)) as tried:
            tried.connect(parts.netloc + parts.path)


def _sockets() -> Iterator[str]:
    runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    for path in (
        "/var/run/docker.sock",
        f"{runtime}/docker.sock",
        f"{runtime}/podman/podman.sock",
        "/run/podman/podman.sock",
    ):
        if os.path.exists(path):
            yield f"unix://{path}"


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(f"{path.relative_to(folder)}\0{path.lstat().st_mode}\0".encode(errors="replace"))
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()[:24]


def _machine() -> tuple[str, str]:
    """This boot of this machine, and the pid namespace in which we know processes by their ids."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip(), str(os.stat("/proc/self/ns/pid").st_ino)


def _started(pid: int) -> str:
    """When a process began, in clock ticks since boot; "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _orphaned(row: dict[str, Any]) -> bool:
    """Whether we can tell that the owner is gone; another machine's, or another namespace's, we can't."""
    owner = (row.get("Labels") or {}).get(LABEL, "").split(":")
    if len(owner) != 4 or (owner[0], owner[1]) != _machine() or not owner[2].isdigit():
        return False
    return _started(int(owner[2])) != str(owner[3])
