"""Bubblewrap's isolation, the ledger, and what is said when there is no bubblewrap."""

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.errors import ConfigError, SandboxError, SandboxLost
from skyrl_gym.sandbox import (
    Ledger,
    Limits,
    Mount,
    SandboxSpec,
    UnsafeSandboxWarning,
    bubblewrap_problem,
    check_backend,
    open_sandbox,
    readable_by_sandbox,
)
from skyrl_gym.sandbox import (
    backend as sandbox_backend,
)
from skyrl_gym.sandbox.processes import tree_of
from skyrl_gym.sandbox.testing.harness import command_lines

# Seconds to sleep, by which this run's own sleepers are known.
NAP = f"900.{secrets.randbelow(10**9):09d}"

needs_bubblewrap = pytest.mark.skipif(bubblewrap_problem() is not None, reason=bubblewrap_problem() or "")


def inside(command: str | list[str], spec: SandboxSpec | None = None) -> Any:
    async def main() -> Any:
        async with await open_sandbox(spec or SandboxSpec(), ledger=Ledger()) as box:
            return await box.exec(command, timeout_s=20)

    return asyncio.run(main())


@needs_bubblewrap
def test_killing_everything_inside_harms_nobody_outside() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        inside("kill -9 -1; kill -9 1")
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


@needs_bubblewrap
def test_host_processes_files_and_network_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("canary")
    text = inside(f"ls /proc | grep -c '^[0-9]'; cat {tmp_path}/secret; ls -A /root /home /tmp; cat /etc/shadow").text
    assert int(text.split()[0]) < 12
    assert "canary" not in text
    assert "root:" not in text
    probe = (
        "import socket, sys; s = socket.socket(); s.settimeout(2)\n"
        "try: s.connect(('127.0.0.1', int(sys.argv[1])))\n"
        "except OSError: print('refused')"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert "refused" in inside(f'/usr/bin/python3 -c "{probe}" {port}').text


@needs_bubblewrap
def test_it_runs_without_privileges() -> None:
    text = inside("id -u; grep CapEff /proc/self/status; echo x > /proc/sys/kernel/hostname").text
    assert text.split()[0] != "0"
    assert "CapEff:\t0000000000000000" in text
    assert "Permission denied" in text or "Read-only" in text


@needs_bubblewrap
def test_read_only_mounts_are_read_only(open_folder: Path) -> None:
    (open_folder / "a").write_text("x")
    (open_folder / "a").chmod(0o666)
    open_folder.chmod(0o777)
    spec = SandboxSpec(mounts=(Mount(str(open_folder), "/data"),))
    result = inside("cat /data/a; echo y > /data/a; touch /data/b", spec)
    assert result.text.startswith("x")
    assert result.text.count("Read-only file system") == 2
    assert [path.name for path in open_folder.iterdir()] == ["a"]
    assert (open_folder / "a").read_text() == "x"


@needs_bubblewrap
def test_a_fork_bomb_and_a_memory_bomb_are_contained() -> None:
    limits = Limits(memory_mb=256, processes=60)
    spec = SandboxSpec(limits=limits)
    forked = inside("for i in $(seq 200); do sleep 1 & done; wait", spec)
    assert "Resource temporarily unavailable" in forked.text
    eaten = inside("/usr/bin/python3 -c 'x = bytearray(10**9)'", spec)
    assert "MemoryError" in eaten.text


@needs_bubblewrap
def test_two_sandboxes_do_not_see_each_other() -> None:
    async def main() -> tuple[str, str]:
        async with await open_sandbox(SandboxSpec()) as one, await open_sandbox(SandboxSpec()) as two:
            await one.write("/tmp/mine", b"1")
            await one.write("mine", b"1")
            found = await two.exec("ls /tmp /work", timeout_s=10)
            again = await one.exec("ls /tmp /work", timeout_s=10)
            return found.text, again.text

    found, again = asyncio.run(main())
    assert "mine" not in found
    assert again.count("mine") == 2


@needs_bubblewrap
def test_arguments_hold_no_content() -> None:
    """NeMo Gym#2284: secrets stand in argument lists, which every user can read."""

    async def main() -> bytes:
        async with await open_sandbox(SandboxSpec()) as box:
            writing = asyncio.create_task(box.write("f", b"canary-4711" * 300_000))
            seen = b""
            while not writing.done():
                await asyncio.sleep(0.001)
                seen += b"".join(command_lines().values())
            return seen

    assert b"canary-4711" not in asyncio.run(main())


@needs_bubblewrap
def test_a_start_that_fails_leaves_nothing(tmp_path: Path, own_temporary: Path) -> None:
    ledger = Ledger()
    for mounts in (
        (Mount(str(tmp_path / "none"), "/x"),),
        (Mount(str(tmp_path), "/work", "private"), Mount(str(tmp_path / "none"), "/x")),
        (Mount("/usr", "/proc/1/x"),),
    ):
        with pytest.raises(SandboxError):
            asyncio.run(open_sandbox(SandboxSpec(mounts=mounts), ledger=ledger))
    assert (ledger.created, ledger.destroyed, ledger.live) == (3, 3, 0)
    assert os.listdir(own_temporary) == []


@needs_bubblewrap
@pytest.mark.parametrize("ending", ["pass", "raise SystemExit(3)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_an_interpreter_that_ends_takes_its_sandboxes_along(ending: str, survivors: Any) -> None:
    program = (
        "import asyncio, os, signal\n"
        "from skyrl_gym.sandbox import Ledger, open_sandbox, SandboxSpec\n"
        "async def main():\n"
        "    box = await open_sandbox(SandboxSpec(), ledger=Ledger())\n"
        f"    await (await box.shell()).run('sleep {NAP} & setsid sleep {NAP} &', timeout_s=5)\n"
        f"    {ending}\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=30)
    assert done.returncode in (0, 3, -9), done.stderr
    assert survivors(NAP) == []


def test_an_interpreter_that_ends_takes_plain_processes_along(survivors: Any) -> None:
    program = (
        "import asyncio\n"
        "from skyrl_gym.sandbox import open_sandbox, SandboxSpec\n"
        "async def main():\n"
        "    box = await open_sandbox(SandboxSpec(), 'process')\n"
        "    print(box._scratch)\n"
        f"    await (await box.shell()).run('setsid sleep {NAP} >/dev/null 2>&1 &', timeout_s=5)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert not Path(done.stdout.strip()).exists()
    assert survivors(NAP) == []


def test_missing_bubblewrap_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ledger = Ledger()
    with pytest.raises(SandboxError, match="apt-get install bubblewrap"):
        asyncio.run(open_sandbox(SandboxSpec(), ledger=ledger))
    assert ledger.live == 0


def test_no_user_namespaces_says_what_to_do(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = open_folder / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{open_folder}:{os.environ['PATH']}")
    ledger = Ledger()
    with pytest.raises(SandboxError, match=r"namespaces here .*Permission denied.*apparmor"):
        asyncio.run(open_sandbox(SandboxSpec(), ledger=ledger))
    assert ledger.live == 0


def test_the_process_backend_warns_and_unknown_ones_are_named() -> None:
    async def opened() -> None:
        async with await open_sandbox(SandboxSpec(), "process"):
            pass

    with pytest.warns(UnsafeSandboxWarning, match="does not isolate"):
        asyncio.run(opened())
    with pytest.raises(ConfigError, match="'dokcer'; known: bubblewrap, docker, process"):
        asyncio.run(open_sandbox(SandboxSpec(), "dokcer"))


def test_the_state_of_each_backend_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert check_backend("process").available
    with pytest.raises(ConfigError, match="known: bubblewrap, docker, process"):
        check_backend("podman")
    monkeypatch.setenv("PATH", str(tmp_path))
    status = check_backend("bubblewrap")
    assert not status.available
    assert "bwrap" in status.detail
    assert status.remedy.startswith("sudo apt-get install bubblewrap")
    assert status.problem == f"{status.detail}: {status.remedy}"


@needs_bubblewrap
def test_an_installed_bubblewrap_tells_its_version() -> None:
    assert check_backend("bubblewrap").version[0].isdigit()


@needs_bubblewrap
def test_a_command_sees_these_variables_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "canary-key")
    seen = inside("env; cat /proc/*/environ | tr '\\0' '\\n'", SandboxSpec(env={"GIVEN": "yes"})).text
    assert {line.partition("=")[0] for line in seen.splitlines()} <= {
        "GIVEN",
        "HOME",
        "LANG",
        "PATH",
        "PWD",
        "SHLVL",
        "_",
        "OLDPWD",
    }
    assert "GIVEN=yes" in seen


@needs_bubblewrap
def test_what_a_command_is_given_can_not_be_read_by_others() -> None:
    async def main() -> bytes:
        spec = SandboxSpec(env={"TOKEN": "canary-4712"})
        async with await open_sandbox(spec) as box:
            running = asyncio.create_task(box.exec("sleep 0.3", timeout_s=5, env={"MORE": "canary-4712"}))
            await asyncio.sleep(0.15)
            seen = b"".join(command_lines().values())
            await running
            return seen

    seen = asyncio.run(main())
    assert b"sleep\x000.3" in seen
    assert b"canary-4712" not in seen


@needs_bubblewrap
def test_nothing_but_the_given_folders_is_writable() -> None:
    tried = inside("for f in / /usr /etc /dev /proc /proc/sys/kernel /lower /box; do touch $f/x && echo $f; done")
    assert {line for line in tried.text.splitlines() if line.startswith("/")} == set()


@needs_bubblewrap
def test_privileges_can_not_be_had_back() -> None:
    for attempt in ("unshare -U true", "unshare -m true", "mount -t tmpfs x /tmp", "nsenter -t 1 -m true"):
        assert inside(attempt).code != 0, attempt
    assert "NoNewPrivs:\t1" in inside("cat /proc/self/status").text


REFUSED = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace(16, 1, 0, 0) == 0 and print("ptrace")
libc.syscall(NUMBERS["io_uring_setup"], 1, 0) != -1 and print("io_uring")
for name, number in NUMBERS.items():
    ctypes.set_errno(0)
    if libc.syscall(number, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 1:
        print(name, ctypes.get_errno())
print("done")
"""


@needs_bubblewrap
def test_calls_that_no_command_needs_are_refused() -> None:
    numbers = {
        "keyctl": 250,
        "bpf": 321,
        "perf_event_open": 298,
        "io_uring_setup": 425,
        "userfaultfd": 323,
        "mount": 165,
    }
    if os.uname().machine != "x86_64":
        pytest.skip("the numbers are those of x86_64")
    assert (
        inside(f"/usr/bin/python3 -c '{REFUSED.replace('NUMBERS', repr(numbers).replace(chr(39), chr(34)))}'").text
        == "done\n"
    )


@needs_bubblewrap
def test_threads_processes_and_terminals_work_under_the_filter() -> None:
    program = (
        "import multiprocessing, os, pty, threading\n"
        "thread = threading.Thread(target=print, args=['thread']); thread.start(); thread.join()\n"
        "process = multiprocessing.Process(target=print, args=['process']); process.start(); process.join()\n"
        "print(bool(pty.openpty()))\n"
    )
    assert inside(["/usr/bin/python3", "-c", program]).text.split() == ["thread", "process", "True"]


@needs_bubblewrap
def test_no_descriptor_of_the_host_is_open_inside() -> None:
    assert inside("ls /proc/self/fd").text.split() == ["0", "1", "2", "3"]  # 3: the folder that is being listed


@needs_bubblewrap
def test_written_files_keep_within_the_limit(open_folder: Path) -> None:
    (open_folder / "a").write_text("x")
    mounts = (Mount(str(open_folder), "/copy", "private"),)
    spec = SandboxSpec(mounts=mounts, limits=Limits(disk_mb=16))

    async def main() -> list[Any]:
        async with await open_sandbox(spec) as box:
            results = []
            for folder in ("/tmp", "/work", "/dev/shm", "/copy"):
                fill = (
                    f"cd {folder}; for i in 1 2 3; do head -c 9000000 /dev/zero > $i; done; cat ? | wc -c; rm -f [123]"
                )
                results.append(await box.exec(fill, timeout_s=20))
            return results

    for result in asyncio.run(main()):
        assert "No space left on device" in result.text
        assert int(result.text.split()[-1]) < 17_000_000


@needs_bubblewrap
def test_processes_are_limited_for_all_commands_together() -> None:
    async def main() -> list[Any]:
        async with await open_sandbox(SandboxSpec(limits=Limits(processes=60))) as box:
            many = "for i in $(seq 40); do sleep 1 & done; wait"
            return await asyncio.gather(*(box.exec(many, timeout_s=20) for _ in range(2)))

    assert any("Resource temporarily unavailable" in result.text for result in asyncio.run(main()))


@needs_bubblewrap
def test_commands_and_shell_share_files_and_network_and_no_other_sandbox_does() -> None:
    serve = "cd /tmp && echo hello > page && exec /usr/bin/python3 -m http.server 8123 --bind 127.0.0.1"
    fetch = (
        "/usr/bin/python3 -c \"import urllib.request as u; print(u.urlopen('http://localhost:8123/page').read())\" 2>&1"
    )

    async def main() -> tuple[Any, Any]:
        async with await open_sandbox(SandboxSpec()) as one, await open_sandbox(SandboxSpec()) as two:
            await (await one.shell()).run(f"({serve}) >/dev/null 2>&1 &", timeout_s=5)
            for _ in range(50):
                own = await one.exec(fetch, timeout_s=10)
                if own.code == 0:
                    break
            return own, await two.exec(fetch, timeout_s=10)

    own, other = asyncio.run(main())
    assert "hello" in own.text
    assert "refused" in other.text


@needs_bubblewrap
def test_the_network_is_there_only_when_it_is_asked_for() -> None:
    probe = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 2); print('connected')"
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = f'/usr/bin/python3 -c "{probe}" {server.getsockname()[1]} 2>&1; ls /etc/resolv.conf 2>&1'
        with_network, without = inside(command, SandboxSpec(network=True)), inside(command)
    assert "connected" in with_network.text
    assert os.path.exists("/etc/resolv.conf") == ("No such file" not in with_network.text)
    assert "refused" in without.text


@needs_bubblewrap
def test_the_shell_holds_a_fork_bomb() -> None:
    async def main() -> tuple[Any, Any]:
        async with await open_sandbox(SandboxSpec(limits=Limits(processes=80))) as box:
            shell = await box.shell()
            bomb = await shell.run("bomb() { bomb | bomb & }; bomb; sleep 600", timeout_s=1)
            return bomb, await shell.run("kill -9 -1; echo alive", timeout_s=10)

    bomb, after = asyncio.run(main())
    assert bomb.duration_s < 5
    assert after.status == "shell_exited" or "alive" in after.text


@needs_bubblewrap
def test_a_sandbox_that_dies_is_lost(survivors: Any) -> None:
    ledger = Ledger()

    async def main() -> None:
        box = await open_sandbox(SandboxSpec(), ledger=ledger)
        shell = await box.shell()
        running = [
            asyncio.create_task(box.exec(f"sleep {NAP}", timeout_s=60)),
            asyncio.create_task(shell.run(f"sleep {NAP}", timeout_s=60)),
        ]
        await asyncio.sleep(0.3)
        os.kill(box._holder.init, signal.SIGKILL)  # type: ignore[attr-defined]
        for ended in await asyncio.gather(*running, return_exceptions=True):
            assert isinstance(ended, SandboxLost)
        for use in (box.exec("true", timeout_s=5), box.read("x"), box.write("x", b""), shell.run("true", timeout_s=5)):
            with pytest.raises(SandboxLost):
                await use
        await box.close()

    asyncio.run(main())
    assert (ledger.created, ledger.live) == (1, 0)
    assert survivors(NAP) == []


@pytest.fixture
def tree(open_folder: Path) -> Path:
    """What copies tend to get wrong: links, modes, empty folders, odd names."""
    (open_folder / "folder" / "inner").mkdir(parents=True)
    (open_folder / "folder" / "file").write_text("content")
    (open_folder / "secret").write_text("mine")
    (open_folder / "secret").chmod(0o600)
    (open_folder / "script").write_text("#!/bin/sh\necho ran\n")
    (open_folder / "script").chmod(0o755)
    (open_folder / "link").symlink_to("folder/file")
    (open_folder / "dangling").symlink_to("/nowhere")
    (open_folder / "-rf").write_text("")
    (open_folder / "ünï cöde").write_text("")
    return open_folder


def as_it_is(tree: Path) -> list[Any]:
    return sorted((str(p), p.lstat().st_mode, p.lstat().st_mtime_ns, p.lstat().st_uid) for p in tree.rglob("*"))


CHANGES = """
set -e
test -O secret; ./script; cat link secret; echo more >> secret
rm -r folder; mkdir folder; touch folder/new; mkdir x; mv folder x/
mv script renamed; chmod 700 renamed; ln -f secret hard; rm -- -rf
ls -AR
"""


@needs_bubblewrap
@pytest.mark.parametrize("owner", [None, 12_345])
def test_a_private_folder_can_be_changed_in_every_way(tree: Path, owner: int | None) -> None:
    """A stranger's folder is copied, one's own is overlaid where the kernel can."""
    if owner is not None:
        if os.geteuid() != 0:
            pytest.skip("giving files away takes root")
        for path in (tree, *tree.rglob("*")):
            os.chown(path, owner, owner, follow_symlinks=False)
    before = as_it_is(tree)
    mounts = (Mount(str(tree), "/repo", "private"), Mount(str(tree), "/again", "private"))

    async def main() -> tuple[Any, Any, frozenset[str]]:
        async with await open_sandbox(SandboxSpec(workdir="/repo", mounts=mounts), ledger=Ledger()) as box:
            changed = await box.exec(CHANGES, timeout_s=10)
            return changed, await box.exec("cd /again && ls -A && cat secret", timeout_s=10), box.capabilities

    changed, again, capabilities = asyncio.run(main())
    assert changed.code == 0, changed.text
    assert changed.text.startswith("ran\ncontentmine")
    assert again.text.split() == ["-rf", "dangling", "folder", "link", "script", "secret", "ünï", "cöde", "mine"]
    assert as_it_is(tree) == before
    assert owner is None or "private:copy" in capabilities


@needs_bubblewrap
def test_a_private_folder_needs_no_open_path(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "closed" / "file").write_text("content")
    spec = SandboxSpec(mounts=(Mount(str(tmp_path / "closed"), "/repo", "private"),))
    assert inside("cat /repo/file && echo x > /repo/file", spec).text == "content"


@needs_bubblewrap
def test_a_read_only_folder_out_of_reach_is_refused_with_the_reason(tmp_path: Path) -> None:
    if readable_by_sandbox(tmp_path):
        pytest.skip("this user's own folders are within the sandbox's reach")
    with pytest.raises(SandboxError, match="chmod"):
        inside("true", SandboxSpec(mounts=(Mount(str(tmp_path), "/data"),)))


@needs_bubblewrap
@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("bwrap", "exit 1"),
        ("bwrap", "HANG"),
        ("bwrap", "echo here; HANG"),
        ("bwrap", 'for n in 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do echo "{" >&$n; done 2>/dev/null; exit 1'),
        ("nsenter", "exit 1"),
        ("nsenter", "HANG"),
        ("tar", "echo broken >&2; exit 2"),
        ("tar", "HANG"),
    ],
)
def test_a_start_that_breaks_at_any_step_is_bounded_and_leaves_nothing(
    program: str, text: str, open_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survivors: Any
) -> None:
    """Stand-ins for the programs that a start uses, each failing or hanging in its own way."""
    (open_folder / program).write_text(f"#!/bin/sh\n{text.replace('HANG', f'sleep {NAP}')}\n")
    (open_folder / program).chmod(0o755)
    (tmp_path / "file").write_text("")
    if os.geteuid() == 0:
        os.chown(tmp_path, 12_345, 12_345)  # so that it is copied
    elif program == "tar":
        pytest.skip("one's own folders are overlaid, not copied")
    monkeypatch.setattr(sandbox_backend, "START_TIMEOUT_S", 1.0)
    monkeypatch.setenv("PATH", f"{open_folder}:{os.environ['PATH']}")
    ledger = Ledger()
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SandboxError):
        asyncio.run(open_sandbox(SandboxSpec(mounts=(Mount(str(tmp_path), "/x", "private"),)), ledger=ledger))
    assert (ledger.created, ledger.live) == (1, 0)
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert survivors(NAP) == []


@needs_bubblewrap
def test_a_start_that_takes_too_long_is_given_up_in_time(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (open_folder / "bwrap").write_text(f"#!/bin/sh\nsleep {NAP}\n")
    (open_folder / "bwrap").chmod(0o755)
    monkeypatch.setattr(sandbox_backend, "START_TIMEOUT_S", 0.5)
    monkeypatch.setenv("PATH", f"{open_folder}:{os.environ['PATH']}")
    began = time.monotonic()
    with pytest.raises(SandboxError, match=r"not ready within 0\.5 s"):
        asyncio.run(open_sandbox(SandboxSpec(), ledger=Ledger()))
    assert time.monotonic() - began < 4


@needs_bubblewrap
def test_bubblewrap_is_dead_before_the_pipe_that_it_writes_to_is_closed(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch, survivors: Any
) -> None:
    """The real one ends when it can't write, and leaves a child that waits for ever; so does this stand-in."""
    (open_folder / "bwrap").write_text(
        "#!/bin/bash\n"
        "trap '' PIPE\n"
        'while [ "$1" != --info-fd ]; do shift; done\n'
        f"sleep {NAP} >/dev/null 2>&1 &\n"
        'while printf " " >&"$2"; do :; done 2>/dev/null\n'
    )
    (open_folder / "bwrap").chmod(0o755)
    monkeypatch.setattr(sandbox_backend, "START_TIMEOUT_S", 0.5)
    monkeypatch.setenv("PATH", f"{open_folder}:{os.environ['PATH']}")
    with pytest.raises(SandboxError, match="not ready"):
        asyncio.run(open_sandbox(SandboxSpec(), ledger=Ledger()))
    assert survivors(NAP) == []


@needs_bubblewrap
@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes to another user")
def test_as_root_all_of_it_runs_as_somebody_else() -> None:
    async def main() -> set[str]:
        others = tree_of(os.getpid())
        async with await open_sandbox(SandboxSpec()) as box:
            await (await box.shell()).run("true", timeout_s=5)
            found = tree_of(os.getpid()) - others
            assert box._holder.init in found  # type: ignore[attr-defined]
            return set().union(*map(_identity, found))

    assert asyncio.run(main()) == {"Uid:\t65534\t65534\t65534\t65534", "Groups:\t "}


def _identity(pid: int) -> list[str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return [line for line in lines if line.startswith(("Uid:", "Groups:"))]


@needs_bubblewrap
def test_a_killed_command_leaves_no_zombie() -> None:
    """Orphans of the program come to it as their subreaper, and would stand there as zombies."""
    program = (
        "import asyncio, ctypes, os\n"
        "from skyrl_gym.sandbox import open_sandbox, SandboxSpec\n"
        "from skyrl_gym.sandbox.processes import children_of\n"
        "PR_SET_CHILD_SUBREAPER = 36\n"
        "assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1) == 0\n"
        "async def main():\n"
        "    async with await open_sandbox(SandboxSpec()) as box:\n"
        "        await box.exec('sleep 60 & setsid sleep 60 & sleep 60', timeout_s=0.3)\n"
        "        await (await box.shell()).run('sleep 60', timeout_s=0.3)\n"
        "asyncio.run(main())\n"
        "print(list(children_of(os.getpid())))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert done.stdout == "[]\n", done.stderr
