"""Several equal HTTP servers as one: sessions stay where their KV cache is, and leave a server that fails."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import aiohttp

from skyrl_gym.errors import ConfigError, PolicyError, PolicyTimeout
from skyrl_gym.policy.base import PolicyLoad
from skyrl_gym.policy.connections import CONNECT_S, open_client, proxy_for, room_for_connections
from skyrl_gym.policy.metrics import read_load

__all__ = ["Answer", "Call", "Refused", "Servers"]

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
UNREACHABLE = frozenset({502, 503, 504})  # of those, the ones that speak of the server and not of the request
LOAD_S = 0.5  # how long a load once read is good for
MOST_SESSIONS = 65_536
LONGEST_COOL_DOWN_S = 30.0


Call: TypeAlias = tuple[str, Mapping[str, Any]]
"""A path beside the API's version (`/pause`), and what is posted there."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, and the version of the weights when it was asked for."""

    data: Any
    version: int


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
    behind: bool = False  # it may have missed what the others were told, or have forgotten it
    greeted: asyncio.Lock = field(default_factory=asyncio.Lock)

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
        self.behind = True
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
        patience_s: how long a request waits where no server at all can be reached, before that counts as a try.
        max_connections: open at once, to all servers; more requests wait for one. None: 8,192, or half as
            many as this process may open files.
    """

    version: int = 0
    """Of the weights that the servers hold."""
    greeting: Sequence[Call] = ()
    """What a server that was away is told before it is asked again."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        retries: int = 4,
        patience_s: float = 0.0,
        max_connections: int | None = None,
    ) -> None:
        for url in urls or [""]:
            if not url.startswith(("http://", "https://")) or not urlsplit(url).hostname:
                raise ConfigError(f"a server's address is http://HOST or https://HOST; got {url!r}")
        self._servers = [_Server(url.rstrip("/"), proxy_for(url)) for url in urls]
        self._held: OrderedDict[str, _Server] = OrderedDict()
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s
        self._retries = retries
        self._patience_s = patience_s
        self._may_ask = asyncio.Event()
        self._may_ask.set()
        self._max_connections = max_connections or room_for_connections()
        self._client: aiohttp.ClientSession | None = None
        self._load: tuple[float, PolicyLoad] | None = None

    async def post(self, path: str, body: Mapping[str, Any], *, session: str | None = None) -> Answer:
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

    def hold(self) -> None:
        """From now on no request is sent; those that are under way go on."""
        self._may_ask.clear()

    def release(self) -> None:
        """Requests are sent again."""
        self._may_ask.set()

    async def tell(self, *calls: Call) -> None:
        """The same calls, one after the other, to every server that can be reached; the others get the greeting
        when they are back. Where none can be reached they are waited for, as long as for a request.

        Raises:
            PolicyError: none can be reached, or one fails.
            Refused: one won't.
        """
        patient_until = time.monotonic() + self._patience_s
        while not await self._tell_those_that_are_there(calls):
            if time.monotonic() >= patient_until:
                raise PolicyError(f"no server can be reached: {self._names()}")
            await asyncio.sleep(0.5)

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

    async def _persist(self, path: str, data: bytes, session: str | None) -> Answer:
        waited, patient_until = 0, 0.0
        while True:
            while not self._may_ask.is_set():
                await self._may_ask.wait()
            server, version = self._pick(session), self.version
            try:
                content = await self._fresh_or_again(server, path, data)
            except _Fault as fault:
                if fault.server_down:
                    server.fail()
                    if self._one_is_open():
                        continue
                    patient_until = patient_until or time.monotonic() + self._patience_s
                    if await self._opened(patient_until):
                        continue
                if waited == self._retries:
                    raise PolicyError(f"{server.name}: {fault}") from fault.__cause__
                await _back_off(waited, fault.retry_after_s)
                waited += 1
            else:
                server.succeed()
                return Answer(_decoded(server, content), version)

    async def _fresh_or_again(self, server: _Server, path: str, data: bytes) -> bytes:
        connection = SimpleNamespace(reused=False)
        server.in_flight += 1
        try:
            await self._greet(server)
            try:
                return await self._once(server, server.url + path, data, connection)
            except _Fault as fault:
                if not (connection.reused and isinstance(fault.__cause__, _DISCONNECTED)):
                    raise
            return await self._once(server, server.url + path, data, connection)
        finally:
            server.in_flight -= 1

    def _one_is_open(self) -> bool:
        return any(server.closed_until <= time.monotonic() for server in self._servers)

    async def _opened(self, until: float) -> bool:
        """Waits until a server may be tried; False when that took too long."""
        while time.monotonic() < until:
            await asyncio.sleep(random.uniform(0.05, 0.5))
            if self._one_is_open():
                return True
        return False

    async def _greet(self, server: _Server) -> None:
        """Tells a server that was away what it may have missed."""
        async with server.greeted:
            if server.behind and self.greeting:
                try:
                    await self._tell_one(server, self.greeting)
                except Refused as refusal:
                    raise _Fault(str(refusal), server_down=True) from refusal
            server.behind = False

    async def _tell_those_that_are_there(self, calls: Sequence[Call]) -> bool:
        """Whether there is one."""
        now = time.monotonic()
        there = [server for server in self._servers if server.closed_until <= now or server.in_flight]
        for server in self._servers:
            server.behind = server.behind or server not in there
        found = await asyncio.gather(*(self._tell_one(server, calls) for server in there), return_exceptions=True)
        for server, fault in zip(there, found, strict=True):
            if isinstance(fault, _Fault) and fault.server_down:
                server.fail()
            elif isinstance(fault, BaseException):
                for other in self._servers:
                    other.behind = True
                if isinstance(fault, _Fault):
                    raise PolicyError(f"{server.name}: {fault}") from fault.__cause__
                raise fault
        return None in found

    async def _tell_one(self, server: _Server, calls: Sequence[Call]) -> None:
        for path, body in calls:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._once(server, server.root + path, json.dumps(body).encode(), SimpleNamespace())
            except TimeoutError as error:
                raise _Fault(f"no answer to {path} within {self._timeout_s:g} s", server_down=True) from error

    async def _once(self, server: _Server, url: str, data: bytes, connection: SimpleNamespace) -> bytes:
        try:
            async with self._open().post(url, data=data, proxy=server.proxy, trace_request_ctx=connection) as response:
                content, status, headers = await response.read(), response.status, response.headers
        except (aiohttp.ClientError, OSError) as error:
            raise _Fault(f"{type(error).__name__}: {error}", server_down=True) from error
        if status < 400:
            return content
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
            server.behind = True  # it may be another process when it is back
            return None
        return read_load(text) or PolicyLoad(server.in_flight, 0)

    def _open(self) -> aiohttp.ClientSession:
        """The client, made within the event loop that uses it."""
        if self._client is None:
            self._client = open_client(self._headers, self._max_connections)
        return self._client


_DISCONNECTED = (aiohttp.ServerDisconnectedError, ConnectionError)


def _decoded(server: _Server, content: bytes) -> Any:
    try:
        return json.loads(content or b"null")
    except ValueError:
        raise PolicyError(f"{server.name}: an answer that is not JSON: {_start(content, 200)!r}") from None


def _start(content: bytes, length: int) -> str:
    return content[:length].decode(errors="replace")


async def _back_off(attempt: int, retry_after_s: float) -> None:
    delay = 0.25 * 2**attempt * random.uniform(0.5, 1.5)
    await asyncio.sleep(min(max(delay, retry_after_s), 60.0))
