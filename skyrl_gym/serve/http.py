"""What the servers share: JSON in and out, errors as JSON, a token, and running until Ctrl-C."""

from __future__ import annotations

import hmac
import ipaddress
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

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

__all__ = ["Handler", "check_host", "make_app", "read_object", "serve"]

Handler = Callable[[Request], Awaitable[Response]]
MOST_BYTES = 64 * 1024 * 1024  # of a request: a long conversation with pictures


def make_app(
    routes: Sequence[tuple[str, str, Handler]],
    lifespan: Callable[[], AbstractAsyncContextManager[None]],
    token: str | None = None,
) -> Starlette:
    """An application of (method, path, handler); errors of this package become JSON with a fitting status.

    With a token, each request must carry it as a bearer token.
    """

    def guarded(handler: Handler) -> Handler:
        async def endpoint(request: Request) -> Response:
            try:
                _check_token(request, token)
                return await handler(request)
            except SkyRLError as error:
                return _as_response(error)

        return endpoint

    @asynccontextmanager
    async def living(app: Starlette) -> AsyncIterator[None]:
        async with lifespan():
            yield

    found = [Route(path, guarded(handler), methods=[method]) for method, path, handler in routes]
    return Starlette(routes=found, lifespan=living)


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

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started:
                started(f"http://{host}:{self.servers[0].sockets[0].getsockname()[1]}")

    config = uvicorn.Config(app, host=host, port=port, log_level="error", access_log=False, timeout_graceful_shutdown=5)
    server = Server(config)
    try:
        server.run()
    except SystemExit:
        raise ConfigError(f"can't listen on {host}:{port}: the port is taken, or the address is not ours") from None


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
