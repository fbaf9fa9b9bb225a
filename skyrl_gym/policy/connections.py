"""The HTTP client for servers: connections that notice a dead peer, and as many as this process has room for."""

from __future__ import annotations

import resource
import socket
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

__all__ = ["CONNECT_S", "open_client", "proxy_for", "room_for_connections"]

CONNECT_S = 10.0
DEAD_PEER_S = 20  # unacknowledged for this long: the other end is gone
IDLE_S = 4.0  # uvicorn (vLLM, SGLang) closes an idle connection after 5 s; we let go of it first


def open_client(headers: Mapping[str, str], limit: int) -> aiohttp.ClientSession:
    """A client of at most `limit` connections, to be made within the event loop that uses it.

    A request's `trace_request_ctx` is told, as `reused`, that it went over a connection that was there.
    """
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_note_reuse)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=limit, keepalive_timeout=IDLE_S, socket_factory=_guarded_socket),
        headers={"content-type": "application/json", **headers},
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        trace_configs=[trace],
    )


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


def proxy_for(url: str) -> str | None:
    """The proxy that the surroundings name for this address; looked up once, not at every request."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


def room_for_connections() -> int:
    """8,192, or half as many as this process may open files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 8_192 if files == resource.RLIM_INFINITY else min(8_192, files // 2)
