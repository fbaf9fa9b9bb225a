"""What is the container backend's own: images, limits, mounts, and what a killed process leaves behind."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.errors import SandboxError, SandboxLost
from skyrl_gym.sandbox import Ledger, Limits, Mount, SandboxSpec, check_backend, engine, open_sandbox
from skyrl_gym.sandbox.testing.engines import mounts_below, private_engine
from skyrl_gym.sandbox.testing.harness import NAP, survivors


@pytest.fixture(params=["docker", "podman"])
def address(request: pytest.FixtureRequest, engine_address: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    found: str = engine_address(request.param)
    monkeypatch.setenv("DOCKER_HOST", found)
    return found


def left(address: str) -> list[str]:
    """The containers of ours and the images of snapshots that the engine holds."""
    there = engine.connect()
    try:
        wanted = {"label": engine.LABEL}
        rows = [*there.client.api.containers(all=True, filters=wanted), *there.client.api.images(filters=wanted)]
        return [str(row["Id"]) for row in rows]
    finally:
        there.close()


def test_limits_hold_and_are_reported(address: str, image_folder: Path) -> None:
    async def main() -> None:
        limits = Limits(memory_mb=64, processes=40, cpus=0.5)
        async with await open_sandbox(SandboxSpec(image=str(image_folder), limits=limits), "docker") as box:
            assert box.capabilities == {"memory:cgroup", "processes:cgroup", "cpu:cgroup"}
            eaten = await box.exec("x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo survived", timeout_s=60)
            assert "survived" not in eaten.text
            many = await box.exec("for i in $(seq 60); do sleep 5 & done 2>/dev/null; jobs | wc -l", timeout_s=4)
            assert many.status == "timeout" or many.code != 0 or int(many.text) < 40
            assert (await box.exec("echo alive", timeout_s=10)).text == "alive\n"

    asyncio.run(main())


def test_an_image_that_was_used_is_known_by_its_digest(address: str, image_folder: Path) -> None:
    async def main() -> str:
        async with await open_sandbox(SandboxSpec(image=str(image_folder)), "docker") as box:
            return (await box.exec("echo used", timeout_s=10)).text

    assert asyncio.run(main()) == "used\n"
    found = engine.image_digests([str(image_folder), "nobody/has-this:1"])
    assert found["nobody/has-this:1"] is None
    assert str(found[str(image_folder)]).startswith("sha256:")


def test_where_no_engine_runs_images_have_no_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/engine.sock")
    assert engine.image_digests(["some/image"]) == {"some/image": None}
    assert engine.image_digests([]) == {}


def test_it_has_no_network_no_capabilities_and_the_read_only_mounts_that_it_was_given(
    address: str, image_folder: Path, open_folder: Path
) -> None:
    (open_folder / "a").write_text("host")

    async def main() -> tuple[str, str]:
        spec = SandboxSpec(image=str(image_folder), mounts=(Mount(str(open_folder), "/data"),), env={"GIVEN": "yes"})
        async with await open_sandbox(spec, "docker") as box:
            told = await box.exec("ls /sys/class/net; grep -E 'CapEff|NoNew|Seccomp:' /proc/self/status", timeout_s=10)
            tried = await box.exec("cat /data/a; echo x > /data/a; echo $GIVEN; id -u", timeout_s=10)
            return told.text, tried.text

    told, tried = asyncio.run(main())
    assert told.split() == ["lo", "CapEff:", "0" * 16, "NoNewPrivs:", "1", "Seccomp:", "2"]
    assert "Read-only file system" in tried
    assert "yes" in tried.split()
    assert (open_folder / "a").read_text() == "host"


def test_commands_cost_little(address: str, image_folder: Path) -> None:
    """By far less than an exec each: 500 in the shell are done before as many execs could be."""

    async def main() -> float:
        async with await open_sandbox(SandboxSpec(image=str(image_folder)), "docker") as box:
            shell = await box.shell()
            began = time.monotonic()
            for _ in range(500):
                await shell.run("true", timeout_s=5)
            return time.monotonic() - began

    assert asyncio.run(main()) < 15


def test_a_container_that_ends_loses_the_sandbox(address: str, image_folder: Path) -> None:
    ledger = Ledger()

    async def main() -> None:
        box: Any = await open_sandbox(SandboxSpec(image=str(image_folder)), "docker", ledger=ledger)
        running = asyncio.create_task(box.exec("sleep 60", timeout_s=60))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(box._container.kill)
        with pytest.raises(SandboxLost):
            await running
        with pytest.raises(SandboxError):
            await box.exec("true", timeout_s=5)
        await box.close()

    asyncio.run(main())
    assert ledger.live == 0
    assert left(address) == []


def test_a_command_that_kills_all_it_can_leaves_the_container_usable(address: str, image_folder: Path) -> None:
    async def main() -> None:
        async with await open_sandbox(SandboxSpec(image=str(image_folder)), "docker") as box:
            shell = await box.shell()
            await shell.run("A=1", timeout_s=5)
            await box.exec("kill -9 -1; kill -9 1", timeout_s=10)
            assert (await box.exec("echo alive", timeout_s=10)).text == "alive\n"
            lost = await shell.run("true", timeout_s=10)
            assert (lost.status, lost.restarted) == ("shell_exited", True)
            assert (await shell.run("echo again", timeout_s=10)).text == "again\n"

    asyncio.run(main())


@pytest.mark.parametrize("ending", ["pass", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_what_a_process_leaves_is_removed_at_its_end_or_by_the_next(
    address: str, image_folder: Path, ending: str
) -> None:
    program = (
        "import asyncio, os, signal\n"
        "from skyrl_gym.sandbox import SandboxSpec, open_sandbox\n"
        "async def main():\n"
        f"    box = await open_sandbox(SandboxSpec(image={str(image_folder)!r}), 'docker')\n"
        "    await box.snapshot()\n"
        f"    {ending}\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, -9), done.stderr
    assert len(left(address)) == (0 if ending == "pass" else 2)

    async def main() -> None:
        async with await open_sandbox(SandboxSpec(image=str(image_folder)), "docker"):
            assert len(left(address)) == 1

    asyncio.run(main())
    assert left(address) == []


def test_an_image_that_can_not_be_had_says_so(address: str, tmp_path: Path) -> None:
    ledger = Ledger()
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY none /none\n")
    for image in ("localhost:1/none:1", str(tmp_path), str(tmp_path / "none")):
        with pytest.raises(SandboxError, match="can't be had"):
            asyncio.run(open_sandbox(SandboxSpec(image=image), "docker", ledger=ledger))
    with pytest.raises(SandboxError, match="SandboxSpec\\(image="):
        asyncio.run(open_sandbox(SandboxSpec(), "docker", ledger=ledger))
    assert ledger.created == 0


def test_an_engine_that_answers_is_reported(address: str) -> None:
    status = check_backend("docker")
    assert status.available
    assert address in status.detail


def test_an_engine_that_does_not_answer_is_reported_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    status = check_backend("docker")
    assert not status.available
    assert "DOCKER_HOST" in status.remedy
    with pytest.raises(SandboxError, match="no container engine answers"):
        asyncio.run(open_sandbox(SandboxSpec(image="x"), "docker", ledger=Ledger()))


@pytest.mark.parametrize("name", ["docker", "podman"])
def test_a_private_engine_takes_its_containers_mounts_and_folder_along(
    name: str, image_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with private_engine(name) as address:
        if not address.startswith("unix:"):
            pytest.skip(address)
        folder = Path(address.removeprefix("unix://")).parent
        monkeypatch.setenv("DOCKER_HOST", address)
        there = engine.connect()
        try:
            image = engine.find_image(there.client, str(image_folder))
            there.client.containers.run(image, ["sleep", NAP], detach=True, network_mode="none")
        finally:
            there.close()
        assert survivors(NAP, within_s=0)
    assert survivors(NAP) == []
    assert mounts_below(str(folder)) == []
    assert not folder.exists()


def test_another_machines_leftovers_are_left_alone(address: str, image_folder: Path) -> None:
    there = engine.connect()
    try:
        image = engine.find_image(there.client, str(image_folder))
        mine = f"{os.getpid()}:1"
        for owner in (f"elsewhere:1:{mine}", "nonsense", "", engine.labels()[engine.LABEL]):
            there.client.containers.create(image, ["true"], labels={engine.LABEL: owner}, name=f"test-{len(owner)}")
        assert engine.reap(there.client) == 0
        assert len(left(address)) == 4
    finally:
        for row in there.client.api.containers(all=True, filters={"label": engine.LABEL}):
            engine.remove_container(there.client, row["Id"])
        there.close()
