"""An environment over HTTP: reset, step and close, one session an episode.

::

    GET  /       what it is: tools, splits, number of tasks, sessions
    POST /reset  {"session"?, "seed"?, "task"?}
                 -> {"session", "keep", "messages", "info"}
    POST /step   {"session", "turn"?, "action"}
                 -> {"keep", "messages", "reward", "terminated", "truncated", "info"}
    POST /close  {"session"}

The conversation after a request is its first `keep` messages followed by `messages`: what has not changed is
not sent again. An action is text, an assistant message, or a list of {"name", "arguments"}.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from skyrl_gym.env import TextEnv
from skyrl_gym.errors import MessageError
from skyrl_gym.messages import Conversation, ToolCall, decode_arguments, from_openai, to_openai
from skyrl_gym.serve.http import Endpoint, make_app, read_object
from skyrl_gym.serve.sessions import Sessions
from skyrl_gym.spaces import Action

__all__ = ["env_app", "read_action"]


def env_app(
    make: Callable[[], TextEnv], *, sessions: int = 32, idle_s: float = 600.0, token: str | None = None
) -> Starlette:
    """The application.

    Args:
        make: makes one environment; called once for each session, and once for the description.
        sessions: how many there may be at once; one more is answered 429.
        idle_s: a session that nobody used for so long is closed.
        token: what every request must carry, if anything.
    """
    return _EnvServer(make, sessions, idle_s).app(token)


class _Session:
    """One environment and what its client has seen."""

    def __init__(self, env: TextEnv) -> None:
        self.env = env
        self.turn = 0
        self.seen: Conversation = ()
        self.last: dict[str, Any] = {}

    async def reset(self, seed: int | None, task: Any) -> dict[str, Any]:
        options = None if task is None else {"task": task}
        messages, info = await self.env.areset_or_free(seed=seed, options=options)
        self.turn, self.seen = 0, messages
        return {"keep": 0, "messages": [to_openai(message) for message in messages], "info": info}

    async def step(self, turn: int | None, action: Any) -> dict[str, Any]:
        """One turn. The same turn again (a client that lost the answer) is answered as before, not carried out."""
        if turn is not None and self.turn and turn == self.turn - 1:
            return self.last
        if turn is not None and turn != self.turn:
            raise MessageError(f"the next turn of this session is {self.turn}; got {turn}")
        messages, reward, terminated, truncated, info = await self.env.astep(read_action(action))
        ended = {"reward": reward, "terminated": terminated, "truncated": truncated, "info": info}
        self.last = self._news(messages) | ended
        self.turn += 1
        return self.last

    def _news(self, messages: Conversation) -> dict[str, Any]:
        keep = 0
        while keep < min(len(messages), len(self.seen)) and messages[keep] == self.seen[keep]:
            keep += 1
        self.seen = messages
        return {"keep": keep, "messages": [to_openai(message) for message in messages[keep:]]}


class _EnvServer:
    def __init__(self, make: Callable[[], TextEnv], most: int, idle_s: float) -> None:
        self._make = make
        self._sessions: Sessions[_Session] = Sessions(most, idle_s, _end)

    def app(self, token: str | None) -> Starlette:
        endpoints = [
            Endpoint("GET", "/", self.describe, token),
            Endpoint("POST", "/reset", self.reset, token),
            Endpoint("POST", "/step", self.step, token),
            Endpoint("POST", "/close", self.close, token),
        ]
        return make_app(endpoints, self._lifespan)

    async def describe(self, request: Request) -> Response:
        env = self._make()
        try:
            tasks = await asyncio.to_thread(lambda: len(env.tasks))
            return JSONResponse(
                {
                    "env": env.spec.id if env.spec else type(env).__name__,
                    "tools": [spec.to_openai()["function"] for spec in env.tool_specs],
                    "splits": list(env.splits),
                    "split": env.split,
                    "tasks": tasks,
                    "max_turns": env.max_turns,
                    "sessions": self._sessions.live,
                    "most_sessions": self._sessions.most,
                }
            )
        finally:
            await env.aclose()

    async def reset(self, request: Request) -> Response:
        body = await _fields(request, "session", "seed", "task")
        name, seed = body.get("session"), body.get("seed")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise MessageError(f"a seed is a whole number or null; got {seed!r}")
        if name is None:
            name, session = await self._sessions.open(self._open)
            try:
                answer = await session.reset(seed, body.get("task"))
            except BaseException:
                await self._sessions.close(name)
                raise
            return JSONResponse({"session": name, **answer})
        async with self._sessions.use(str(name)) as session:
            return JSONResponse({"session": name, **await session.reset(seed, body.get("task"))})

    async def step(self, request: Request) -> Response:
        body = await _fields(request, "session", "turn", "action")
        async with self._sessions.use(str(body.get("session"))) as session:
            return JSONResponse(await session.step(body.get("turn"), body.get("action")))

    async def close(self, request: Request) -> Response:
        body = await _fields(request, "session")
        await self._sessions.close(str(body.get("session")))
        return JSONResponse({})

    async def _open(self) -> _Session:
        return _Session(self._make())

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


async def _end(session: _Session, idle: bool) -> None:
    await session.env.aclose()


async def _fields(request: Request, *known: str) -> dict[str, Any]:
    body = await read_object(request)
    if unknown := [name for name in body if name not in known]:
        raise MessageError(f"unknown field {unknown[0]!r}; {request.url.path} takes {', '.join(known)}")
    return body


def read_action(data: Any) -> Action:
    """An action from its JSON form.

    Raises:
        MessageError: it is none.
    """
    match data:
        case str():
            return data
        case {"role": "assistant"}:
            return from_openai(data)
        case {"name": str()}:
            return _call(data)
        case [*calls] if calls:
            return [_call(call) for call in calls]
    raise MessageError(
        f'an action is text, an assistant message, {{"name", "arguments"}} or a list of these; got {data!r:.100}'
    )


def _call(data: Any) -> ToolCall:
    match data:
        case {"name": str(name), **rest}:
            return ToolCall(name, decode_arguments(rest.get("arguments") or "{}"), str(rest.get("id") or ""))
    raise MessageError(f'a call is {{"name", "arguments"}}; got {data!r:.100}')
