"""Container engines of one's own, and an image without a registry: for tests and benchmarks."""

from __future__ import annotations

import io
import os
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from skyrl_gym.sandbox.processes import kill_until_gone, marked

__all__ = ["mounts_below", "private_engine", "write_image"]

ENGINE_START_S = 20.0
PODMAN_CONF = """
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=30000:30000"]
log_driver = "k8s-file"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
"""


@contextmanager
def private_engine(name: str) -> Iterator[str]:
    """Runs dockerd ("docker") or Podman's service ("podman"): its address as for DOCKER_HOST, or why there is none."""
    program = {"docker": "dockerd", "podman": "podman"}[name]
    if shutil.which(program) is None:
        yield f"{program} is not installed"
        return
    with tempfile.TemporaryDirectory() as folder:
        address = f"{folder}/socket"
        env = {**os.environ, "CONTAINERS_CONF": f"{folder}/containers.conf"}
        with open(f"{folder}/log", "w") as log:
            daemon = subprocess.Popen(
                _docker(folder, address) if name == "docker" else _podman_service(folder, address),
                stdout=log,
                stderr=log,
                cwd=folder,  # conmon leaves a file there when the memory was not enough
                env=env,
            )
        try:
            until = time.monotonic() + ENGINE_START_S
            while not _answers(address) and daemon.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            lines = Path(folder, "log").read_text().splitlines()
            yield f"unix://{address}" if _answers(address) else f"{program} does not start: {' '.join(lines[-2:])}"
        finally:
            daemon.terminate()
            daemon.wait(30)
            if name == "podman":  # whose containers outlive its service
                _clear_podman(folder, env)


def _clear_podman(folder: str, env: dict[str, str]) -> None:
    """Ends its containers and those who watch them, each of which would lay out the folder anew when it is done."""
    subprocess.run([*_podman(folder), "rm", "--all", "--force", "--time", "0"], capture_output=True, env=env)
    kill_until_gone(partial(marked, f"CONTAINERS_CONF={folder}/"))
    for mounted in reversed(mounts_below(folder)):
        subprocess.run(["umount", mounted], check=True)


def mounts_below(folder: str) -> list[str]:
    """Where something is mounted in a folder, in the order in which it was."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    targets = (line.split()[4].encode().decode("unicode_escape") for line in lines)  # a space is written "\040"
    return [target for target in targets if target.startswith(f"{folder}/")]


def _docker(folder: str, address: str) -> list[str]:
    places = ["--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid"]
    plain = ["--iptables=false", "--ip-masq=false", "--bridge=none"]
    return ["dockerd", *places, "--host", f"unix://{address}", *plain]


def _podman_service(folder: str, address: str) -> list[str]:
    Path(folder, "containers.conf").write_text(PODMAN_CONF)
    return [*_podman(folder), "system", "service", "--time", "0", f"unix://{address}"]


def _podman(folder: str) -> list[str]:
    places = ["--root", f"{folder}/root", "--runroot", f"{folder}/run", "--tmpdir", f"{folder}/tmp"]
    return ["podman", *places, "--storage-driver", "overlay"]


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(5)
        try:
            asked.connect(path)
            asked.sendall(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n")
            return b" 200 " in asked.recv(1_000)
        except OSError:
            return False


def write_image(folder: Path) -> str | None:
    """Writes a Dockerfile for an image of this machine's bash and busybox; gives the reason where it can't."""
    if shutil.which("busybox") is None:
        return "busybox is not installed: sudo apt-get install busybox-static"
    with tarfile.open(folder / "root.tar", "w") as tar:
        _fill(tar)
    (folder / "Dockerfile").write_text("FROM scratch\nADD root.tar /\nENV PATH=/usr/bin:/bin\n")
    return None


def _fill(tar: tarfile.TarFile) -> None:
    for name in ("usr", "usr/bin", "usr/lib", "usr/lib64", "etc", "root", "tmp"):
        _add(tar, name, tarfile.DIRTYPE, mode=0o1777 if name == "tmp" else 0o755)
    for name in ("bin", "lib", "lib64"):
        _add(tar, name, tarfile.SYMTYPE, linkname=f"usr/{name}")
    for program in ("bash", "busybox"):
        tar.add(os.path.realpath(str(shutil.which(program))), f"usr/bin/{program}")
        for library in _libraries(str(shutil.which(program))):
            tar.add(os.path.realpath(library), f"usr/{library.lstrip('/').removeprefix('usr/')}")
    for applet in subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True).stdout.split():
        if applet not in ("bash", "busybox"):
            _add(tar, f"usr/bin/{applet}", tarfile.SYMTYPE, linkname="busybox")
    _add(tar, "etc/passwd", tarfile.REGTYPE, content=b"root:x:0:0::/root:/bin/sh\n")


def _add(tar: tarfile.TarFile, name: str, kind: bytes, *, content: bytes = b"", **fields: Any) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.size, member.mode = kind, len(content), fields.pop("mode", 0o644)
    member.linkname = fields.pop("linkname", "")
    tar.addfile(member, io.BytesIO(content))


def _libraries(program: str) -> list[str]:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True).stdout.split()
    return [word for word in listed if word.startswith("/")]
