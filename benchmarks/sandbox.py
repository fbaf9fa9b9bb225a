"""Sandboxes on a repository of 5,000 files: a start, a command, a fork, whole episodes 64 at once; against containers.

An episode: a start, five commands in the shell, a file written and read, the end. It can't be faster than bubblewrap
is with the same namespaces alone: a holder with an overlay in it, and in that what the shell and the files each run in.
A container has the same done to it by its own backend, and by `docker run` of one command for all of it.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.processor import processor_time
from skyrl_gym.sandbox import Limits, Mount, Sandbox, SandboxPool, SandboxSpec, bubblewrap_problem, engine, open_sandbox
from skyrl_gym.sandbox.status import can_overlay
from skyrl_gym.sandbox.testing.engines import private_engine, write_image

FILES = 5_000
SAMPLES = 30
EPISODES, AT_ONCE = 256, 64
CONTAINERS, CONTAINERS_AT_ONCE = 16, 8

Open = Callable[[], Awaitable[Sandbox]]


def write_repository(folder: Path) -> None:
    for n in range(FILES // 100):
        part = folder / f"package_{n}"
        part.mkdir()
        for m in range(100):
            (part / f"module_{m}.py").write_text(f"VALUE = {n * m}\n" * 500)


async def episode(start: Open) -> None:
    box = await start()
    async with box:
        shell = await box.shell()
        for n in range(5):
            assert (await shell.run(f"cd package_{n} 2>/dev/null; echo {n}", timeout_s=60)).code == 0
        await box.write("/work/note", b"note")
        assert await box.read("/work/note") == b"note"


async def starts(start: Open, pause_s: float = 0.0, samples: int = SAMPLES) -> list[float]:
    took = []
    for _ in range(samples):
        await asyncio.sleep(pause_s)
        began = time.perf_counter()
        box = await start()
        await (await box.shell()).run("true", timeout_s=60)
        took.append(time.perf_counter() - began)
        await box.close()
    return took


async def commands(start: Open) -> dict[str, list[float]]:
    async with await start() as box:
        shell = await box.shell()
        found: dict[str, list[float]] = {}
        works: dict[str, Callable[[], Awaitable[object]]] = {
            "command in the shell": lambda: shell.run("true", timeout_s=60),
            "command by exec": lambda: box.exec("true", timeout_s=60),
            "file of 1 KB written": lambda: box.write("file", b"x" * 1_024),
            "file of 1 KB read": lambda: box.read("file"),
        }
        for name, work in works.items():
            await work()
            found[name] = [await timed(work) for _ in range(SAMPLES)]
        await box.exec("head -c 1000000 /dev/urandom > changed", timeout_s=60)
        found["fork, 1 MB changed"] = [await timed(lambda: forked(box)) for _ in range(SAMPLES // 3)]
        return found


async def forked(box: Sandbox) -> None:
    await (await box.fork()).close()


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def many(start: Open, episodes: int, at_once: int) -> float:
    """Episodes a second."""
    room = asyncio.Semaphore(at_once)

    async def one() -> None:
        async with room:
            await episode(start)

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(episodes)))
    return episodes / (time.perf_counter() - began)


def bare(repository: Path, episodes: int, at_once: int) -> float:
    """Episodes a second that consist of namespaces and an overlay alone."""
    inner = "bwrap --unshare-user --unshare-pid --dev-bind / / -- true"
    layers = f"lowerdir={repository},upperdir=/mnt/upper,workdir=/mnt/work,userxattr"
    mount = f"mount -t overlay -o {layers} overlay /mnt/all && " if can_overlay() else ""
    work = f"{mount}{inner} && exec {inner}"
    folders = [part for name in ("upper", "work", "all") for part in ("--dir", f"/mnt/{name}")]
    holder = ["bwrap", "--unshare-all", "--uid", "0", "--gid", "0", "--cap-add", "ALL", "--dev-bind", "/", "/"]
    command = [*holder, "--tmpfs", "/mnt", *folders, "--", "sh", "-c", work]
    numbers = "\n".join(map(str, range(episodes)))
    began = time.perf_counter()
    subprocess.run(["xargs", "-P", str(at_once), "-n", "1", *command], input=numbers, text=True, check=True)
    return episodes / (time.perf_counter() - began)


def show(name: str, took: list[float]) -> None:
    cut = statistics.quantiles(took, n=20)
    print(f"{name:<34} p50 {cut[9] * 1e3:9.2f} ms   p95 {cut[18] * 1e3:9.2f} ms   least {min(took) * 1e3:9.2f} ms")


async def with_cpu(used_s: Callable[[], float] | None, rate: Awaitable[float]) -> tuple[float, str]:
    """Episodes a second, and what each took of the processors, in words."""
    before = used_s() if used_s else 0.0
    found = await rate
    if used_s is None:
        return found, "CPU is not measured: the kernel gives no control group"
    return found, f"{(used_s() - before) / EPISODES * 1e3:.1f} ms of CPU each"


async def measure_bubblewrap(repository: Path) -> None:
    spec = SandboxSpec(mounts=(Mount(str(repository), "/work", "private"),))

    async def cold() -> Sandbox:
        return await open_sandbox(spec)

    show("bubblewrap: cold start", await starts(cold))
    async with SandboxPool(ready=2) as pool:
        await pool.warm(spec)
        show("bubblewrap: warm start", await starts(lambda: pool.take(spec), pause_s=0.3))
    for name, took in (await commands(cold)).items():
        show(f"bubblewrap: {name}", took)
    await many(cold, AT_ONCE, AT_ONCE)
    with processor_time() as used_s:
        rate, cpu = await with_cpu(used_s, many(cold, EPISODES, AT_ONCE))
        bound, least_cpu = await with_cpu(used_s, asyncio.to_thread(bare, repository, EPISODES, AT_ONCE))
    print(f"bubblewrap: {AT_ONCE} at once       {rate:6.1f} episodes/s   {cpu}")
    print(f"bubblewrap: namespaces alone {bound:6.1f} episodes/s   {least_cpu}")
    print(f"bubblewrap: {rate / bound:.0%} of what namespaces alone allow   (load {os.getloadavg()[0]:.1f})")


async def measure_containers(name: str, image: str, repository: Path) -> None:
    spec = SandboxSpec(image=image, mounts=(Mount(str(repository), "/work", "private"),))
    bare = SandboxSpec(image=image, limits=Limits(processes=256))

    async def with_repository() -> Sandbox:
        return await open_sandbox(spec, "docker")

    async def without() -> Sandbox:
        return await open_sandbox(bare, "docker")

    show(f"{name}: start", await starts(without, samples=5))
    show(f"{name}: start, repository copied", await starts(with_repository, samples=3))
    for what, took in (await commands(without)).items():
        show(f"{name}: {what}", took)
    rate = await many(without, CONTAINERS, CONTAINERS_AT_ONCE)
    print(f"{name}: {CONTAINERS_AT_ONCE} at once         {rate:6.1f} episodes/s, without a repository")


def measure_run(name: str, image: str) -> None:
    """One command in a container of its own, removed afterwards."""
    there = engine.connect()
    try:
        found = engine.find_image(there.client, image)
        took = []
        for _ in range(5):
            began = time.perf_counter()
            there.client.containers.run(found, ["true"], remove=True, network_mode="none")
            took.append(time.perf_counter() - began)
        show(f"{name} run --rm true", took)
    finally:
        there.close()


@contextmanager
def engine_in_use(name: str) -> Iterator[bool]:
    before = os.environ.get("DOCKER_HOST")
    with private_engine(name) as address:
        if not address.startswith("unix:"):
            print(f"{name}: {address}")
            yield False
            return
        os.environ["DOCKER_HOST"] = address
        try:
            yield True
        finally:
            os.environ.pop("DOCKER_HOST")
            if before is not None:
                os.environ["DOCKER_HOST"] = before


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        repository, image = Path(folder, "repository"), Path(folder, "image")
        repository.mkdir()
        image.mkdir()
        write_repository(repository)
        subprocess.run(["sync"], check=True)
        if problem := bubblewrap_problem():
            print(f"bubblewrap: {problem}")
        else:
            asyncio.run(measure_bubblewrap(repository))
        if problem := write_image(image):
            print(f"containers: {problem}")
            return
        for name in ("docker", "podman"):
            with engine_in_use(name) as runs:
                if runs:
                    asyncio.run(measure_containers(name, str(image), repository))
                    measure_run(name, str(image))


if __name__ == "__main__":
    main()
