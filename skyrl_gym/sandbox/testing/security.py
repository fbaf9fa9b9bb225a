"""What no command may reach: each test is an attack, made so that it does no harm where it succeeds.

Not for backends that do not isolate: before any attack the tests look whether processes have ids of their own inside.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.sandbox.base import SandboxSpec
from skyrl_gym.sandbox.ledger import Ledger
from skyrl_gym.sandbox.testing.harness import NAP, Harness

__all__ = ["SecurityTests"]

# Tells what could be done, one word each; opens for writing, and writes nothing.
_PROBE = """
import ctypes, os, socket, stat, sys

libc = ctypes.CDLL(None, use_errno=True)

def attempt(name, work):
    try:
        if work():
            print(name)
    except OSError:
        pass

def opened(path, flags):
    os.close(os.open(path, flags))
    return True

def connected(family, address):
    with socket.socket(family) as tried:
        tried.settimeout(2)
        tried.connect(address)
    return True
"""
_SYSCTLS = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hostname",
    "/proc/sys/vm/drop_caches",
    "/proc/sysrq-trigger",
    "/sys/kernel/uevent_helper",
)
_MEMORY = ("/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", "/proc/kcore")


async def check_isolated(box: Any) -> None:
    """Before an attack that would do harm."""
    there = await box.exec("readlink /proc/self/ns/pid", timeout_s=10)
    if there.text.strip() in ("", os.readlink("/proc/self/ns/pid")):
        pytest.fail("processes of the host can be reached: this backend must not be attacked")


class SecurityTests(Harness):
    """Of a backend that isolates; `python3` is there inside."""

    @pytest.fixture
    def probe(self, in_sandbox: Any) -> Any:
        """Runs lines of Python inside after the common ones; gives the words that they print."""

        def run(lines: str, spec: SandboxSpec | None = None) -> list[str]:
            async def work(box: Any) -> list[str]:
                await check_isolated(box)
                told = await box.exec(["python3", "-"], stdin=(_PROBE + lines).encode(), timeout_s=30)
                assert told.code == 0, told.text
                return str(told.text).split()

            found: list[str] = in_sandbox(work, spec)
            return found

        return run

    @pytest.fixture
    def host_process(self) -> Iterator[int]:
        with subprocess.Popen(["sleep", NAP]) as process:
            yield process.pid
            process.kill()

    def test_the_hosts_environment_is_not_there(self, probe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SKYRL_CANARY", "canary-4713")
        lines = """
for pid in filter(str.isdigit, os.listdir('/proc')):
    attempt(pid, lambda: b'canary-4713' in open(f'/proc/{pid}/environ', 'rb').read())
"""
        assert probe(lines) == []

    def test_the_hosts_processes_are_not_seen_signalled_or_traced(self, probe: Any, host_process: int) -> None:
        lines = f"""
for pid in filter(str.isdigit, os.listdir('/proc')):
    attempt(pid, lambda: b'{NAP}' in open(f'/proc/{{pid}}/cmdline', 'rb').read())
mine = {{int(pid) for pid in os.listdir('/proc') if pid.isdigit()}}
for pid in ({host_process}, {os.getpid()}):
    if pid not in mine:
        attempt('signalled', lambda: os.kill(pid, 0) is None)
        attempt('traced', lambda: libc.ptrace(16, pid, 0, 0) == 0)
"""
        assert probe(lines) == []

    def test_killing_everything_harms_nobody_outside(self, in_sandbox: Any, host_process: int) -> None:
        """NeMo Gym#2262: with a shared pid namespace the agent can kill the runner."""

        async def work(box: Any) -> str:
            await check_isolated(box)
            await box.exec("kill -9 -1; kill -9 1", timeout_s=10)
            return str((await box.exec("echo alive", timeout_s=10)).text)

        assert in_sandbox(work) == "alive\n"
        os.kill(host_process, 0)

    def test_the_hosts_files_are_not_there(self, probe: Any, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("canary")
        lines = f"""
for path in ({str(tmp_path / "secret")!r}, '/proc/1/root' + {str(tmp_path / "secret")!r}, '/proc/1/cwd/secret'):
    attempt(path, lambda: opened(path, os.O_RDONLY))
attempt('shadow', lambda: opened('/etc/shadow', os.O_RDONLY))
"""
        assert probe(lines) == []

    def test_another_sandboxs_files_are_not_there(self, ledger: Ledger) -> None:
        async def main() -> str:
            spec = self.made_like(SandboxSpec())
            async with await self.open(spec, ledger) as one, await self.open(spec, ledger) as two:
                for path in ("/tmp/canary", "canary", "/dev/shm/canary"):
                    await one.write(path, b"1")
                return (await two.exec("ls /tmp /dev/shm .; ls /proc/*/root/tmp 2>/dev/null", timeout_s=10)).text

        assert "canary" not in asyncio.run(main())

    def test_the_hosts_loopback_and_abstract_sockets_are_not_there(self, probe: Any) -> None:
        name = f"\0skyrl-{NAP}"
        with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
            abstract.bind(name)
            abstract.listen()
            lines = f"""
attempt('loopback', lambda: connected(socket.AF_INET, ('127.0.0.1', {server.getsockname()[1]})))
attempt('abstract', lambda: connected(socket.AF_UNIX, {name!r}))
attempt('interfaces', lambda: {{n for _, n in socket.if_nameindex()}} - {{'lo', 'tunl0', 'sit0', 'ip6tnl0'}})
"""
            assert probe(lines) == []

    def test_no_sysctl_can_be_written(self, probe: Any) -> None:
        lines = f"for path in {_SYSCTLS!r}:\n    attempt(path, lambda: opened(path, os.O_WRONLY))\n"
        assert probe(lines) == []

    def test_no_device_of_the_hosts_can_be_opened_or_made(self, probe: Any) -> None:
        lines = f"""
for path in {_MEMORY!r}:
    attempt(path, lambda: opened(path, os.O_RDONLY))
for path in os.scandir('/dev'):
    attempt(path.name, lambda: stat.S_ISBLK(path.stat().st_mode))
for major, minor in ((1, 1), (8, 0), (254, 0)):
    kind = stat.S_IFCHR if major == 1 else stat.S_IFBLK
    def make():
        os.mknod(f'/tmp/{{major}}', kind | 0o600, os.makedev(major, minor))
        return opened(f'/tmp/{{major}}', os.O_RDONLY)
    attempt('made', make)
"""
        assert probe(lines) == []

    def test_there_are_no_privileges_and_none_to_be_had(self, probe: Any) -> None:
        lines = """
for line in open('/proc/self/status'):
    name, _, value = line.partition(':')
    if name in ('CapEff', 'CapPrm', 'CapInh', 'CapAmb', 'CapBnd'):
        attempt(name, lambda: int(value, 16))
    if name == 'NoNewPrivs':
        attempt(name, lambda: value.strip() != '1')
    if name == 'Seccomp':
        attempt(name, lambda: value.strip() != '2')
"""
        assert probe(lines) == []

    def test_no_namespace_can_be_made_or_entered(self, probe: Any) -> None:
        lines = """
NEWUSER, NEWNS, NEWPID, NEWNET = 0x10000000, 0x20000, 0x20000000, 0x40000000
for flag in (NEWUSER, NEWNS, NEWPID, NEWNET, NEWUSER | NEWNS):
    child = os.fork()
    if child == 0:
        os._exit(0 if libc.unshare(flag) == 0 else 1)
    attempt(f'unshare {flag:x}', lambda: os.waitpid(child, 0)[1] == 0)
for pid in filter(str.isdigit, os.listdir('/proc')):
    for kind in ('user', 'mnt', 'net'):
        def enter():
            descriptor = os.open(f'/proc/{pid}/ns/{kind}', os.O_RDONLY)
            return libc.setns(descriptor, 0) == 0
        attempt(f'setns {kind} of {pid}', enter)
attempt('mount', lambda: libc.mount(b'x', b'/tmp', b'tmpfs', 0, None) == 0)
"""
        assert probe(lines) == []

    def test_a_link_inside_leads_nowhere_outside(self, in_sandbox: Any, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("canary")
        (tmp_path / "up").write_text("up")

        async def work(box: Any) -> None:
            await box.exec(
                f"ln -s {tmp_path} out; ln -s {tmp_path}/secret secret; mkdir d; ln -s / d/root", timeout_s=5
            )
            for path in ("out/secret", "secret", "../../../../.." + str(tmp_path / "secret")):
                with pytest.raises(OSError):
                    await box.read(path)
            for upload in (box.write("secret", b"x"), box.upload(tmp_path / "up", "out/up2")):
                try:
                    await upload
                except OSError:
                    continue

        in_sandbox(work)
        assert sorted(os.listdir(tmp_path)) == ["secret", "up"]
        assert (tmp_path / "secret").read_text() == "canary"
