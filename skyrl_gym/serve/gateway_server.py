"""The gateway over HTTP: a model with OpenAI's protocol, recorded; and the tools of an environment.

::

    POST /sessions                 {"task"?, "seed"?} -> {"session", "url", "base_url", "task_id", "messages", "tools"}
    POST /sessions/ID/v1/chat/completions             OpenAI's; streaming too
    GET  /sessions/ID/v1/models
    POST /sessions/ID/call         {"name", "arguments"} -> {"content", "done"}
    POST /sessions/ID/finish       {"stop_reason"?, "failure"?} -> {"reward", "stop_reason", "metrics"}

An agent that knows only an address and a key uses /v1 with the session as its key.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from skyrl_gym.errors import MessageError, StopReason
from skyrl_gym.messages import Message, ToolCall, decode_arguments, from_openai, to_openai
from skyrl_gym.serve.gateway import Episode, Gateway
from skyrl_gym.serve.http import Endpoint, make_app, read_object
from skyrl_gym.serve.recorder import Answer
from skyrl_gym.serve.sessions import Sessions
from skyrl_gym.tools import ToolSpec

__all__ = ["gateway_app"]

# How an agent may say that it ended.
ENDINGS = (StopReason.DONE, StopReason.EPISODE_TIMEOUT, StopReason.MAX_TURNS)


def gateway_app(
    gateway: Gateway, *, sessions: int = 32, idle_s: float = 1_800.0, token: str | None = None
) -> Starlette:
    """The application.

    An episode whose agent is gone for `idle_s` seconds is graded as it stands; one that is open when the server
    stops is recorded as cancelled.

    Args:
        gateway: opens and records episodes; its policy is closed with the server.
        sessions: how many episodes there may be at once.
        idle_s: see above.
        token: what opening a session takes; a session's own name opens the rest.
    """
    return _Server(gateway, sessions, idle_s).app(token)


class _Server:
    def __init__(self, gateway: Gateway, most: int, idle_s: float) -> None:
        self._gateway = gateway
        self._stopping = False
        self._sessions: Sessions[Episode] = Sessions(most, idle_s, self._end)

    def app(self, token: str | None) -> Starlette:
        one = "/sessions/{session}"
        endpoints = [
            Endpoint("GET", "/", self.describe, token),
            Endpoint("POST", "/sessions", self.open, token),
            Endpoint("POST", f"{one}/call", self.call),
            Endpoint("POST", f"{one}/finish", self.finish),
            Endpoint("POST", f"{one}/v1/chat/completions", self.complete),
            Endpoint("GET", f"{one}/v1/models", self.models),
            Endpoint("POST", "/v1/chat/completions", self.complete),
            Endpoint("GET", "/v1/models", self.models),
        ]
        return make_app(endpoints, self._lifespan)

    async def describe(self, request: Request) -> Response:
        taken = {"sessions": self._sessions.live, "most_sessions": self._sessions.most}
        return JSONResponse({"model": self._gateway.policy.name, **taken})

    async def open(self, request: Request) -> Response:
        body = await read_object(request)
        name, episode = await self._sessions.open(lambda: self._gateway.open(body.get("seed"), body.get("task")))
        url = f"{request.base_url}sessions/{name}"
        return JSONResponse({"session": name, "url": url, "base_url": f"{url}/v1", **episode.describe()})

    async def call(self, request: Request) -> Response:
        match await read_object(request):
            case {"name": str(name), **rest}:
                call = ToolCall(name, decode_arguments(rest.get("arguments") or "{}"), str(rest.get("id") or ""))
            case body:
                raise MessageError(f'a call is {{"name", "arguments"}}; got {body!r:.100}')
        async with self._sessions.use(_session(request)) as episode:
            return JSONResponse(await episode.call(call))

    async def finish(self, request: Request) -> Response:
        body = await read_object(request)
        reason = body.get("stop_reason", StopReason.DONE)
        if reason not in ENDINGS:
            raise MessageError(f"an agent ends with one of {', '.join(ENDINGS)}; got {reason!r}")
        async with self._sessions.take(_session(request)) as episode:
            trajectory = await self._gateway.finish(episode, StopReason(reason), str(body.get("failure") or ""))
        return JSONResponse(
            {
                "reward": trajectory.reward,
                "stop_reason": trajectory.stop_reason.value,
                "metrics": dict(trajectory.metrics),
            }
        )

    async def models(self, request: Request) -> Response:
        model = {"id": self._gateway.policy.name, "object": "model", "created": 0, "owned_by": "skyrl_gym"}
        return JSONResponse({"object": "list", "data": [model]})

    async def complete(self, request: Request) -> Response:
        body = await read_object(request)
        messages, tools, max_tokens = _read(body)
        async with self._sessions.use(_session(request)) as episode:
            said = await self._gateway.complete(episode, messages, tools, max_tokens)
        answer = _answer(self._gateway.policy.name, said)
        if body.get("stream"):
            return StreamingResponse(_chunks(answer), media_type="text/event-stream")
        return JSONResponse(answer)

    async def _end(self, episode: Episode, idle: bool) -> None:
        await self._gateway.finish(episode, StopReason.EPISODE_TIMEOUT if idle else StopReason.CANCELLED)

    @asynccontextmanager
    async def _lifespan(self) -> AsyncIterator[None]:
        reaper = asyncio.create_task(self._sessions.reap())
        try:
            yield
        finally:
            reaper.cancel()
            with suppress(asyncio.CancelledError):
                await reaper
            await self._sessions.aclose()
            await self._gateway.policy.aclose()


def _session(request: Request) -> str:
    key = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
    return str(request.path_params.get("session", key))


def _read(body: dict[str, Any]) -> tuple[tuple[Message, ...], tuple[ToolSpec, ...], int | None]:
    """The conversation, tools and token limit of a request.

    Raises:
        MessageError: something in it is malformed, or asks for what is not done here.
    """
    if body.get("n") not in (None, 1):
        raise MessageError(f"one answer a request: n is 1; got {body['n']!r}")
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise MessageError("a request has a list of messages")
    limits = [body[name] for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None]
    max_tokens = limits[0] if limits else None
    if max_tokens is not None and (not isinstance(max_tokens, int) or max_tokens < 1):
        raise MessageError(f"max_tokens is a whole number from 1; got {max_tokens!r}")
    tools = () if body.get("tool_choice") == "none" else body.get("tools") or ()
    return tuple(from_openai(_plain(message)) for message in messages), tuple(map(_tool, tools)), max_tokens


def _plain(message: Any) -> Any:
    """OpenAI's newer name for the system role, and parts that are all text as the text they are."""
    if not isinstance(message, dict):
        return message
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text", "")) for part in content)
    role = "system" if message.get("role") == "developer" else message.get("role")
    return {**message, "role": role, "content": content}


def _tool(tool: Any) -> ToolSpec:
    match tool:
        case {"type": "function", "function": {"name": str(name), **rest}}:
            parameters: Any = rest.get("parameters") or {"type": "object", "properties": {}}
            return ToolSpec(name, str(rest.get("description") or ""), parameters)
    raise MessageError(f"a tool is a function with a name; got {tool!r:.100}")


def _answer(model: str, said: Answer) -> dict[str, Any]:
    cut = said.completion.finish_reason == "length"
    reason = "length" if cut else "tool_calls" if said.message.tool_calls else "stop"
    prompt, sampled = said.prompt_tokens, len(said.completion.token_ids or ())
    return {
        "id": f"chatcmpl-{time.time_ns():x}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": to_openai(said.message), "finish_reason": reason}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled},
    }


def _chunks(answer: dict[str, Any]) -> Iterator[str]:
    """The answer as a stream of one piece."""
    (choice,) = answer["choices"]
    delta = choice["message"]
    if "tool_calls" in delta:
        delta = {**delta, "tool_calls": [{"index": i, **call} for i, call in enumerate(delta["tool_calls"])]}
    for part, reason in ((delta, None), ({}, choice["finish_reason"])):
        piece: dict[str, Any] = {"index": 0, "delta": part, "finish_reason": reason}
        yield f"data: {json.dumps({**answer, 'object': 'chat.completion.chunk', 'choices': [piece]})}\n\n"
    yield "data: [DONE]\n\n"
