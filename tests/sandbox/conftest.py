"""Folders and a look around for survivors, as the conformance kit has them; and container engines of our own."""

import io
import os
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.sandbox import testing

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


@pytest.fixture
def open_folder() -> Iterator[Path]:
    with testing.reachable_folder() as folder:
        yield folder


@pytest.fixture
def own_temporary(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made during the test: what is left there was left by it."""
    monkeypatch.setattr(tempfile, "tempdir", str(open_folder))
    return open_folder


@pytest.fixture
def survivors() -> Callable[..., list[int]]:
    return testing.survivors


@pytest.fixture(scope="session")
def engine_address() -> Iterator[Callable[[str], str]]:
    """By name, the address of an engine that runs for these tests only; skips where it does not start."""
    with ExitStack() as opened:

        @cache
        def start(name: str) -> str:
            return opened.enter_context(_running(name))

        def address(name: str) -> str:
            found = start(name)
            if not found.startswith("unix:"):
                pytest.skip(found)
            return found

        yield address


@contextmanager
def _running(name: str) -> Iterator[str]:
    """An address, or the reason why there is none."""
    program = {"docker": "dockerd", "podman": "podman"}[name]
    if shutil.which(program) is None:
        yield f"{program} is not installed"
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        address = f"{folder}/socket"
        with open(f"{folder}/log", "w") as log:
            daemon = subprocess.Popen(
                _docker(folder, address) if name == "docker" else _podman(folder, address),
                stdout=log,
                stderr=log,
                env={**os.environ, "CONTAINERS_CONF": f"{folder}/containers.conf"},
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


def _docker(folder: str, address: str) -> list[str]:
    places = ["--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid"]
    plain = ["--iptables=false", "--ip-masq=false", "--bridge=none"]
    return ["dockerd", *places, "--host", f"unix://{address}", *plain]


def _podman(folder: str, address: str) -> list[str]:
    Path(folder, "containers.conf").write_text(PODMAN_CONF)
    places = ["--root", f"{folder}/root", "--runroot", f"{folder}/run", "--tmpdir", f"{folder}/tmp"]
    return ["podman", *places, "--storage-driver", "overlay", "system", "service", "--time", "0", f"unix://{address}"]


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(5)
        try:
            asked.connect(path)
            asked.sendall(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n")
            return b" 200 " in asked.recv(1_000)
        except OSError:
            return False


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Dockerfile for an image of this machine's bash and busybox, without a registry."""
    if shutil.which("busybox") is None:
        pytest.skip("busybox is not installed: sudo apt-get install busybox-static")
    folder = tmp_path_factory.mktemp("image")
    with tarfile.open(folder / "root.tar", "w") as tar:
        _fill(tar)
    (folder / "Dockerfile").write_text("FROM scratch\nADD root.tar /\nENV PATH=/usr/bin:/bin\n")
    return folder


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
