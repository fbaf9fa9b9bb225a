"""Several real servers behind one client: who gets what, who fails, who comes back, and at what cost."""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from skyrl_gym.errors import ConfigError, PolicyError, PolicyTimeout
from skyrl_gym.policy import PolicyLoad, ReportsLoad, open_policy
from skyrl_gym.policy.metrics import read_load
from skyrl_gym.policy.servers import Servers

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
"""


class Fake:
    """A server that says who it is and counts what it served."""

    def __init__(self, metrics: str | None = None) -> None:
        self.served: Counter[str] = Counter()
        self.status = 200
        self.delay_s = 0.0
        self.metrics = metrics
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/ask", self._ask)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True, backlog=4_096)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _ask(self, request: web.Request) -> web.Response:
        body = await request.json()
        await asyncio.sleep(self.delay_s)
        self.served[body["session"]] += 1
        return web.json_response({"port": self.port}, status=self.status)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=self.metrics or "", status=200 if self.metrics else 404)


@contextlib.asynccontextmanager
async def running(*fakes: Fake, **kwargs: Any) -> AsyncIterator[Servers]:
    for fake in fakes:
        await fake.start()
    servers = Servers([fake.url for fake in fakes], **kwargs)
    try:
        yield servers
    finally:
        await servers.aclose()
        for fake in fakes:
            await fake.stop()


async def ask(servers: Servers, session: str) -> int:
    answer = await servers.post("/ask", {"session": session}, session=session)
    return int(answer.data["port"])


def test_a_session_stays_and_new_ones_go_where_the_fewest_are() -> None:
    async def run() -> None:
        fakes = Fake(), Fake(), Fake()
        async with running(*fakes) as servers:
            for _ in range(5):
                await asyncio.gather(*(ask(servers, f"s{i}") for i in range(30)))
        assert [len(fake.served) for fake in fakes] == [10, 10, 10]
        assert all(count == 5 for fake in fakes for count in fake.served.values())

    asyncio.run(run())


def test_a_dead_servers_sessions_move_at_once_and_stay_where_they_went() -> None:
    async def run() -> None:
        fakes = Fake(), Fake()
        async with running(*fakes, retries=0) as servers:
            home = {s: await ask(servers, s) for s in map(str, range(10))}
            await fakes[0].stop()
            moved = {s: await ask(servers, s) for s in home}
            assert set(moved.values()) == {fakes[1].port}
            await fakes[0].start()
            await asyncio.sleep(0.6)  # its first rest is 0.5 s
            assert {await ask(servers, s) for s in home} == {fakes[1].port}
            assert fakes[0].port in [await ask(servers, f"new{i}") for i in range(3)]

    asyncio.run(run())


def test_a_server_that_comes_back_is_tried_by_one_request_first() -> None:
    async def run() -> None:
        fakes = Fake(), Fake()
        async with running(*fakes, retries=0) as servers:
            fakes[0].status = 503
            fakes[1].delay_s = 0.1
            await asyncio.gather(*(ask(servers, f"a{i}") for i in range(6)))
            refused = fakes[0].served.total()
            await asyncio.sleep(0.6)
            await asyncio.gather(*(ask(servers, f"b{i}") for i in range(6)))
            assert fakes[0].served.total() == refused + 1
            assert fakes[1].served.total() == 12

    asyncio.run(run())


def test_all_servers_gone_is_the_policys_failure_and_names_no_password() -> None:
    async def run() -> None:
        servers = Servers(["http://me:secret@127.0.0.1:9/v1", "http://127.0.0.1:10/v1"], retries=1)
        with pytest.raises(PolicyError) as caught:
            await ask(servers, "s")
        assert "secret" not in str(caught.value)
        with pytest.raises(PolicyError, match=r"no server can be reached: 127\.0\.0\.1:9, 127\.0\.0\.1:10"):
            await servers.load()
        await servers.aclose()

    asyncio.run(run())


def test_the_deadline_holds_for_all_tries_together() -> None:
    async def run() -> None:
        fake = Fake()
        fake.status = 500
        async with running(fake, timeout_s=0.5, retries=1_000) as servers:
            with pytest.raises(PolicyTimeout, match=r"within 0\.5 s from 127"):
                await ask(servers, "s")

    asyncio.run(run())


@pytest.mark.parametrize("urls", [[], [""], ["localhost:8000"], ["http://"], ["ftp://a/v1"]])
def test_an_address_that_is_none_is_refused(urls: list[str]) -> None:
    with pytest.raises(ConfigError, match="a server's address is"):
        Servers(urls)


# ---- connections that died


async def raw_server(react: Callable[[int, int], bytes | None]) -> tuple[asyncio.Server, str]:
    """Answers the n-th request of the c-th connection with `react(c, n)`; None closes the connection instead."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connection, connections = connections, connections + 1
        requests = 0
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-len")
                )
                await reader.readexactly(length)
                answer = react(connection, requests)
                requests += 1
                if answer is None:
                    break
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(answer), answer))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


def test_a_connection_closed_while_it_lay_idle_costs_nothing() -> None:
    async def run() -> None:
        server, url = await raw_server(lambda connection, request: b"{}" if request == 0 else None)
        async with server:
            servers = Servers([url], retries=0)
            for _ in range(5):  # each finds the last one's connection closed under it, and opens a new one
                assert (await servers.post("/ask", {})).data == {}
            await servers.aclose()

    asyncio.run(run())


def test_a_new_connection_that_is_closed_is_a_fault_of_the_server() -> None:
    async def run() -> None:
        server, url = await raw_server(lambda connection, request: None)
        async with server:
            servers = Servers([url], retries=0)
            with pytest.raises(PolicyError, match="Disconnected"):
                await servers.post("/ask", {})
            await servers.aclose()

    asyncio.run(run())


VANISHING_PEER = """
import asyncio, fcntl, socket, struct, sys, time
sys.path.insert(0, sys.argv[1])
import skyrl_gym.policy.connections as connections
import skyrl_gym.policy.servers as module
from skyrl_gym.errors import PolicyError, PolicyTimeout

def loopback(up):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        flags, = struct.unpack_from("h", fcntl.ioctl(s, 0x8913, struct.pack("16sh14x", b"lo", 0)), 16)
        fcntl.ioctl(s, 0x8914, struct.pack("16sh14x", b"lo", flags | 1 if up else flags & ~1))

async def serve(reader, writer):
    while await reader.readuntil(b"\\r\\n\\r\\n"):
        await reader.readexactly(2)
        if vanish == "while it answers":
            await asyncio.sleep(0.2); loopback(False); await asyncio.sleep(3600)
        writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-length: 2\\r\\n\\r\\n{}")

async def main():
    loopback(True)
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    servers = module.Servers([f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"], retries=0, timeout_s=60)
    if vanish == "while it lies idle":
        await servers.post("/ask", {}); loopback(False)
    started = time.monotonic()
    try:
        await servers.post("/ask", {})
    except PolicyError as error:
        print(type(error).__name__, time.monotonic() - started, error)

vanish = sys.argv[2]
connections.DEAD_PEER_S = 4
asyncio.run(main())
"""


@pytest.mark.parametrize("vanish", ["while it lies idle", "while it answers"])
def test_a_peer_that_vanishes_without_a_word_is_noticed_long_before_the_deadline(vanish: str) -> None:
    """In a network of its own, the loopback device is switched off under the connection: packets are dropped."""
    root = str(Path(__file__).parents[2])
    alone = ["unshare", "--user", "--map-root-user", "--net"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system gives no network namespaces to users")
    done = subprocess.run(
        [*alone, sys.executable, "-c", VANISHING_PEER, root, vanish], capture_output=True, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    name, seconds, *_ = done.stdout.split()
    assert name == "PolicyError", done.stdout
    assert float(seconds) < 30


# ---- load


def test_vllms_page_is_read_over_all_engines() -> None:
    assert read_load(METRICS) == PolicyLoad(running=5, waiting=7, kv_cache=0.5)
    assert read_load("python_gc_objects_collected_total 3.0\n") is None
    assert read_load("") is None


def test_the_load_of_several_servers_is_their_sum_and_the_fullest_cache() -> None:
    async def run() -> None:
        other = 'vllm:num_requests_running{engine="0"} 1\nvllm:kv_cache_usage_perc{engine="0"} 0.9\n'
        async with running(Fake(METRICS), Fake(other)) as servers:
            assert await servers.load() == PolicyLoad(6, 7, 0.9)

    asyncio.run(run())


def test_a_server_that_tells_nothing_counts_with_our_own_requests() -> None:
    async def run() -> None:
        fake = Fake()
        fake.delay_s = 0.5
        async with running(fake) as servers:
            asking = [asyncio.create_task(ask(servers, str(i))) for i in range(4)]
            await asyncio.sleep(0.1)
            assert await servers.load() == PolicyLoad(4, 0, None)
            await asyncio.gather(*asking)

    asyncio.run(run())


def test_a_policy_of_servers_reports_its_load() -> None:
    assert isinstance(open_policy("http://localhost:1/v1#m"), ReportsLoad)


# ---- thousands at once


def _cpu_seconds_a_request(url: str, concurrent: int) -> float:
    async def run() -> float:
        servers = Servers([url], timeout_s=90)
        started = time.process_time()
        await asyncio.gather(*(ask(servers, str(i)) for i in range(concurrent)))
        used = time.process_time() - started
        await servers.aclose()
        return used / concurrent

    return asyncio.run(run())


SLOW_SERVER = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from tests.policy.test_servers import Fake

async def main():
    fake = Fake()
    fake.delay_s = 1.0
    await fake.start()
    print(fake.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.timeout(600)
def test_two_thousand_completions_at_once_cost_little_more_each_than_a_hundred() -> None:
    """CPU time of the client's process: the server has one of its own."""
    root = str(Path(__file__).parents[2])
    with subprocess.Popen([sys.executable, "-c", SLOW_SERVER, root], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = f"http://127.0.0.1:{json.loads(process.stdout.readline())}/v1"
            _cpu_seconds_a_request(url, 100)
            few = min(_cpu_seconds_a_request(url, 100) for _ in range(3))
            many = min(_cpu_seconds_a_request(url, 2_000) for _ in range(2))
        finally:
            process.kill()
    assert many < 4 * few, f"{1_000 * few:.2f} ms a request at 100, {1_000 * many:.2f} ms at 2,000"
