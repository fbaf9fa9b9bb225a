"""Several equal HTTP servers as one: sessions stay where their KV cache is, and leave a server that fails."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import socket
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from skyrl_gym.errors import ConfigError, PolicyError, PolicyTimeout
from skyrl_gym.policy.base import PolicyLoad
from skyrl_gym.policy.metrics import read_load

__all__ = ["Refused", "Servers"]

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
UNREACHABLE = frozenset({502, 503, 504})  # of those, the ones that speak of the server and not of the request
CONNECT_S = 10.0
DEAD_PEER_S = 20  # unacknowledged for this long: the other end is gone
IDLE_S = 4.0  # uvicorn (vLLM, SGLang) closes an idle connection after 5 s; we let go of it first
LOAD_S = 0.5  # how long a load once read is good for
MOST_SESSIONS = 65_536
LONGEST_COOL_DOWN_S = 30.0


class Refused(ConfigError):
    """The server answered that it will not serve this request; `status` is HTTP's."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class _Fault(Exception):
    """What may pass: worth another try, here or elsewhere."""

    def __init__(self, message: str, *, server_down: bool, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.server_down = server_down
        self.retry_after_s = retry_after_s


@dataclass(eq=False)
class _Server:
    url: str
    proxy: str | None
    in_flight: int = 0
    sessions: int = 0
    failures: int = 0  # in a row
    closed_until: float = 0.0  # on the monotonic clock

    @property
    def name(self) -> str:
        """Host and port: an address may carry a password."""
        return urlsplit(self.url).netloc.rpartition("@")[2]

    @property
    def root(self) -> str:
        """The address without the API's version."""
        return self.url.removesuffix("/v1")

    def fail(self) -> None:
        """Closed for a while that doubles from failure to failure; requests that fail together count once."""
        now = time.monotonic()
        if self.closed_until <= now:
            self.closed_until = now + min(0.5 * 2.0**self.failures, LONGEST_COOL_DOWN_S)
            self.failures += 1

    def succeed(self) -> None:
        self.failures, self.closed_until = 0, 0.0


class Servers:
    """POSTs JSON to one of several servers that serve the same model.

    A new session goes to the server with the fewest requests in flight and stays there. A server that can't
    be reached is left alone for a while (0.5 s, doubling up to 30 s); its sessions move to another at once.
    Then one request at a time tries it again, and the first success opens it. Where no other server is left,
    and for 429 and 5xx, a request waits with exponential backoff; `Retry-After` is honoured.

    A request that dies on a reused connection, before any answer, is sent once more at once: the server had
    closed the connection while it lay idle. Repeating is safe, as a completion changes nothing on the server.

    Args:
        urls: of the API, with its version: "http://localhost:8000/v1".
        api_key: sent as a bearer token.
        timeout_s: for one `post`, with all its tries.
        retries: tries after the first that are waited for.
        max_connections: open at once, to all servers; more requests wait for one. None: 8,192, or half as
            many as this process may open files.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        retries: int = 4,
        max_connections: int | None = None,
    ) -> None:
        for url in urls or [""]:
            if not url.startswith(("http://", "https://")) or not urlsplit(url).hostname:
                raise ConfigError(f"a server's address is http://HOST or https://HOST; got {url!r}")
        self._servers = [_Server(url.rstrip("/"), _proxy_for(url)) for url in urls]
        self._held: OrderedDict[str, _Server] = OrderedDict()
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s
        self._retries = retries
        self._max_connections = max_connections or _room_for_connections()
        self._client: aiohttp.ClientSession | None = None
        self._load: tuple[float, PolicyLoad] | None = None

    async def post(self, path: str, body: Mapping[str, Any], *, session: str | None = None) -> Any:
        """The decoded JSON answer.

        Raises:
            PolicyTimeout: none within `timeout_s`.
            PolicyError: the servers can't be reached, or fail again and again.
            Refused: a server won't serve this request.
        """
        data = json.dumps(body).encode()
        clock = asyncio.timeout(self._timeout_s)
        try:
            async with clock:
                return await self._persist(path, data, session)
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise PolicyTimeout(f"no answer within {self._timeout_s:g} s from {self._names()}") from error

    async def post_to_all(self, path: str, body: Mapping[str, Any] | None = None) -> None:
        """The same request to every server, beside the API's version (`/pause`), without another try.

        Raises:
            PolicyError: a server can't be reached or fails.
            Refused: a server won't.
        """
        data = json.dumps(body or {}).encode()
        asked = (self._once(server, server.root + path, data, SimpleNamespace()) for server in self._servers)
        try:
            await asyncio.gather(*asked)
        except _Fault as fault:
            raise PolicyError(f"{path}: {fault}") from fault.__cause__

    @property
    def in_flight(self) -> int:
        """Requests that wait for their answers."""
        return sum(server.in_flight for server in self._servers)

    async def load(self) -> PolicyLoad:
        """The load of all servers that answer, from vLLM's /metrics; elsewhere our own requests in flight.

        Raises:
            PolicyError: none can be reached.
        """
        if self._load is not None and time.monotonic() - self._load[0] < LOAD_S:
            return self._load[1]
        loads = await asyncio.gather(*map(self._load_of, self._servers))
        seen = [load for load in loads if load is not None]
        if not seen:
            raise PolicyError(f"no server can be reached: {self._names()}")
        shares = [load.kv_cache for load in seen if load.kv_cache is not None]
        total = PolicyLoad(
            sum(load.running for load in seen), sum(load.waiting for load in seen), max(shares, default=None)
        )
        self._load = time.monotonic(), total
        return total

    async def aclose(self) -> None:
        """Closes the connections; may be called twice."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    # ---- which server

    def _pick(self, session: str | None) -> _Server:
        now = time.monotonic()
        ready = [server for server in self._servers if server.closed_until <= now]
        ready = ready or [min(self._servers, key=lambda server: server.closed_until)]
        server = self._held.get(session or "")
        if server not in ready:
            server = min(ready, key=lambda server: (server.in_flight, server.sessions))
            if session:
                self._hold(session, server)
        elif session:
            self._held.move_to_end(session)
        if server.failures and server.closed_until <= now:
            # This request tries it out; the others stay away until it has succeeded or for a while more.
            server.closed_until = now + min(0.5 * 2.0**server.failures, LONGEST_COOL_DOWN_S)
        return server

    def _hold(self, session: str, server: _Server) -> None:
        if session in self._held:
            self._held.pop(session).sessions -= 1
        self._held[session] = server
        server.sessions += 1
        if len(self._held) > MOST_SESSIONS:
            self._held.popitem(last=False)[1].sessions -= 1

    def _names(self) -> str:
        return ", ".join(server.name for server in self._servers)

    # ---- the wire

    async def _persist(self, path: str, data: bytes, session: str | None) -> Any:
        waited = 0
        while True:
            server = self._pick(session)
            try:
                answer = await self._fresh_or_again(server, path, data)
            except _Fault as fault:
                if fault.server_down:
                    server.fail()
                    if any(other.closed_until <= time.monotonic() for other in self._servers):
                        continue
                if waited == self._retries:
                    raise PolicyError(f"{server.name}: {fault}") from fault.__cause__
                await _back_off(waited, fault.retry_after_s)
                waited += 1
            else:
                server.succeed()
                return answer

    async def _fresh_or_again(self, server: _Server, path: str, data: bytes) -> Any:
        connection = SimpleNamespace(reused=False)
        server.in_flight += 1
        try:
            try:
                return await self._once(server, server.url + path, data, connection)
            except _Fault as fault:
                if not (connection.reused and isinstance(fault.__cause__, _DISCONNECTED)):
                    raise
            return await self._once(server, server.url + path, data, connection)
        finally:
            server.in_flight -= 1

    async def _once(self, server: _Server, url: str, data: bytes, connection: SimpleNamespace) -> Any:
        try:
            async with self._open().post(url, data=data, proxy=server.proxy, trace_request_ctx=connection) as response:
                content, status, headers = await response.read(), response.status, response.headers
        except (aiohttp.ClientError, OSError) as error:
            raise _Fault(f"{type(error).__name__}: {error}", server_down=True) from error
        if status < 400:
            try:
                return json.loads(content or b"null")
            except ValueError:
                raise PolicyError(f"{server.name}: an answer that is not JSON: {_start(content, 200)!r}") from None
        if status not in RETRIED:
            raise Refused(f"{server.name} refused ({status}): {_start(content, 600)}", status)
        after = headers.get("retry-after", "")
        raise _Fault(
            f"the server answered {status}: {_start(content, 300)}",
            server_down=status in UNREACHABLE,
            retry_after_s=float(after) if after.isdigit() else 0.0,
        )

    async def _load_of(self, server: _Server) -> PolicyLoad | None:
        limit = aiohttp.ClientTimeout(total=CONNECT_S)
        connection = SimpleNamespace(reused=False)
        try:
            async with self._open().get(
                f"{server.root}/metrics", proxy=server.proxy, timeout=limit, trace_request_ctx=connection
            ) as response:
                text = await response.text(errors="replace") if response.status == 200 else ""
        except (aiohttp.ClientError, OSError):  # a TimeoutError is an OSError
            return None
        return read_load(text) or PolicyLoad(server.in_flight, 0)

    def _open(self) -> aiohttp.ClientSession:
        """The client, made within the event loop that uses it."""
        if self._client is None:
            trace = aiohttp.TraceConfig()
            trace.on_connection_reuseconn.append(_note_reuse)
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._max_connections, keepalive_timeout=IDLE_S, socket_factory=_guarded_socket
                ),
                headers={"content-type": "application/json", **self._headers},
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                trace_configs=[trace],
            )
        return self._client


_DISCONNECTED = (aiohttp.ServerDisconnectedError, ConnectionError)


async def _note_reuse(_: Any, context: SimpleNamespace, __: Any) -> None:
    context.trace_request_ctx.reused = True


def _guarded_socket(address: Any) -> socket.socket:
    """A socket that notices a dead peer, also while nothing is sent (a long completion is silent)."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_S * 1_000)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, DEAD_PEER_S // 2)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, DEAD_PEER_S // 4)
    return made


def _proxy_for(url: str) -> str | None:
    """The proxy that the surroundings name for this address; looked up once, not at every request."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


def _room_for_connections() -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 8_192 if files == resource.RLIM_INFINITY else min(8_192, files // 2)


def _start(content: bytes, length: int) -> str:
    return content[:length].decode(errors="replace")


async def _back_off(attempt: int, retry_after_s: float) -> None:
    delay = 0.25 * 2**attempt * random.uniform(0.5, 1.5)
    await asyncio.sleep(min(max(delay, retry_after_s), 60.0))
