"""What the servers share: JSON in and out, errors as JSON, a token, and running until Ctrl-C."""

from __future__ import annotations

import hmac
import ipaddress
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, NamedTuple

from skyrl_gym.errors import ConfigError, InfraError, MessageError, MissingDependency, SkyRLError, UserError
from skyrl_gym.serve.sessions import NoSuchSession, TooManySessions

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
except ImportError as missing:
    raise MissingDependency.extra(str(missing.name), "serve") from None

__all__ = ["Endpoint", "Handler", "check_host", "make_app", "read_object", "running", "serve"]

Handler = Callable[[Request], Awaitable[Response]]
GRACE_S = 5  # for requests in flight when the server stops
MOST_BYTES = 64 * 1024 * 1024  # of a request: a long conversation with pictures


class Endpoint(NamedTuple):
    """A handler at a path; with a token, each request must carry it as a bearer token."""

    method: str
    path: str
    handler: Handler
    token: str | None = None


def make_app(endpoints: Sequence[Endpoint], lifespan: Callable[[], AbstractAsyncContextManager[None]]) -> Starlette:
    """An application; errors of this package become JSON with a fitting status."""

    @asynccontextmanager
    async def living(app: Starlette) -> AsyncIterator[None]:
        async with lifespan():
            yield

    routes = [Route(each.path, _guarded(each), methods=[each.method]) for each in endpoints]
    return Starlette(routes=routes, lifespan=living)


def _guarded(endpoint: Endpoint) -> Handler:
    async def handle(request: Request) -> Response:
        try:
            _check_token(request, endpoint.token)
            return await endpoint.handler(request)
        except SkyRLError as error:
            return _as_response(error)

    return handle


async def read_object(request: Request) -> dict[str, Any]:
    """The JSON object of a request; an empty body is an empty object.

    Raises:
        MessageError: it is too large, no JSON object, or not declared as JSON (which keeps web pages out).
    """
    if int(request.headers.get("content-length") or 0) > MOST_BYTES:
        raise MessageError(f"a request has at most {MOST_BYTES:,} bytes")
    body = await request.body()
    if not body:
        return {}
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise MessageError("a request has the content type application/json")
    try:
        data = json.loads(body)
    except ValueError as error:
        raise MessageError(f"a request that is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise MessageError(f"a request is a JSON object; got {data!r:.100}")
    return data


def check_host(host: str, token: str | None) -> None:
    """Refuses to listen to other machines without a token.

    Raises:
        ConfigError: the address is not this machine's own alone, and there is no token.
    """
    try:
        own = ipaddress.ip_address(host).is_loopback
    except ValueError:
        own = host == "localhost"
    if not own and not token:
        raise ConfigError(f"listening on {host} lets others run things here: set a token in $SKYRL_TOKEN first")


def serve(app: Starlette, host: str, port: int, started: Callable[[str], None]) -> None:
    """Runs an application until it is interrupted; `started` is told its address once it listens.

    Raises:
        ConfigError: the port is taken, or the host is not this machine's.
    """
    with _listen(host, port) as (listening, url):
        server = uvicorn.Server(_config(app))
        started(url)
        server.run(sockets=[listening])


@contextmanager
def running(app: Starlette, host: str, port: int) -> Iterator[str]:
    """An application that runs beside the block, on a thread of its own; gives its address.

    Raises:
        ConfigError: as `serve`.
    """
    with _listen(host, port) as (listening, url):
        server = uvicorn.Server(_config(app))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="server", daemon=True)
        thread.start()
        try:
            yield url
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def _listen(host: str, port: int) -> Iterator[tuple[socket.socket, str]]:
    """A listening socket, so that who connects before the application is up waits instead of being refused."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=1_024)
    except OSError as error:
        raise ConfigError(f"can't listen on {host}:{port}: {error.strerror or error}") from None
    with listening:
        name = f"[{host}]" if ":" in host else host
        yield listening, f"http://{name}:{listening.getsockname()[1]}"


def _config(app: Starlette) -> uvicorn.Config:
    return uvicorn.Config(app, log_level="error", access_log=False, timeout_graceful_shutdown=GRACE_S, lifespan="on")


def _check_token(request: Request, token: str | None) -> None:
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if token is not None and not hmac.compare_digest(given.encode(), token.encode()):
        raise _Forbidden("this server wants its token: Authorization: Bearer $SKYRL_TOKEN")


class _Forbidden(UserError):
    """A request without the token."""


def _as_response(error: SkyRLError) -> JSONResponse:
    match error:
        case _Forbidden():
            status = 401
        case NoSuchSession():
            status = 404
        case TooManySessions():
            status = 429
        case UserError():
            status = 400
        case InfraError():
            status = 503
        case _:
            status = 500
    body = {"error": {"type": type(error).__name__, "message": str(error)}}
    return JSONResponse(body, status, headers={"retry-after": "1"} if status == 429 else None)
