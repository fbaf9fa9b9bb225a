"""`RemoteEnv`: an environment behind a server, as a Gymnasium environment."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import gymnasium as gym
import httpx

from skyrl_gym import errors
from skyrl_gym.errors import EnvError, MessageError, SkyRLError
from skyrl_gym.messages import Conversation, Message, ToolCall, from_openai, to_openai
from skyrl_gym.spaces import Action, ConversationSpace, ToolSpace
from skyrl_gym.tasks import Task
from skyrl_gym.tools import ToolSpec

__all__ = ["RemoteEnv"]

BUSY = 429  # all sessions are taken: one becomes free in time
_PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0)  # seconds between tries to reach the server


class RemoteEnv(gym.Env[Conversation, Action]):
    """One session with `skyrl serve-env`. Lost connections are tried again; no turn is carried out twice.

    Args:
        url: of the server, like "http://localhost:8000".
        token: what the server wants to see, if anything.
        timeout_s: of one request, and how long to wait for a free session.

    Raises:
        EnvError: the server can't be reached.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float = 600.0) -> None:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(base_url=url.rstrip("/"), headers=headers, timeout=timeout_s)
        self._timeout_s = timeout_s
        self._session: str | None = None
        self._turn = 0
        self._conversation: Conversation = ()
        try:
            self.description = self._ask("GET", "/")
        except BaseException:
            self._client.close()
            raise
        tools = self.description["tools"]
        self.action_space = ToolSpace(ToolSpec(t["name"], t["description"], t["parameters"]) for t in tools)
        self.observation_space = ConversationSpace()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Conversation, dict[str, Any]]:
        """A new episode, in the session that this environment has or a new one; see `TextEnv.areset`."""
        super().reset(seed=seed)
        task = (options or {}).get("task")
        if isinstance(task, Task):
            task = dict(task.data) | {"id": task.id}
        if seed is None and task is None:
            seed = int(self.np_random.integers(2**31))  # so that the client's own seed decides, as it does locally
        body = {"session": self._session, "seed": seed, "task": task}
        try:
            answer = self._ask("POST", "/reset", body)
        except _Gone:
            answer = self._ask("POST", "/reset", body | {"session": None})
        self._session, self._turn = answer["session"], 0
        return self._news(answer), answer["info"]

    def step(self, action: Action) -> tuple[Conversation, float, bool, bool, dict[str, Any]]:
        """One turn; see `TextEnv.step`."""
        if self._session is None:
            raise MessageError("there is no episode yet: call reset() first")
        body = {"session": self._session, "turn": self._turn, "action": _write(action)}
        answer = self._ask("POST", "/step", body)
        self._turn += 1
        return self._news(answer), answer["reward"], answer["terminated"], answer["truncated"], answer["info"]

    def close(self) -> None:
        """Frees the session; may be called twice."""
        if self._session is not None:
            session, self._session = self._session, None
            with suppress(SkyRLError):  # a server that is gone has freed it
                self._ask("POST", "/close", {"session": session})
        self._client.close()

    def _news(self, answer: Mapping[str, Any]) -> Conversation:
        new = tuple(from_openai(message) for message in answer["messages"])
        self._conversation = (*self._conversation[: answer["keep"]], *new)
        return self._conversation

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        deadline = time.monotonic() + self._timeout_s
        for pause in _PAUSES:
            try:
                response = self._client.request(method, path, json=body)
                while response.status_code == BUSY and time.monotonic() < deadline:
                    time.sleep(pause)
                    response = self._client.request(method, path, json=body)
                return _read(response)
            except httpx.TransportError as error:
                problem = error
                time.sleep(pause)
        raise EnvError(f"the server {self._client.base_url} can't be reached: {problem}")


class _Gone(EnvError):
    """The server has no such session any more."""


def _read(response: httpx.Response) -> Any:
    try:
        data = response.json()
    except ValueError:
        raise EnvError(f"the server answered {response.status_code} with no JSON: {response.text[:200]!r}") from None
    if response.is_success:
        return data
    error = data.get("error", {})
    if response.status_code == 404:
        raise _Gone(str(error.get("message", "no such session")))
    found = getattr(errors, str(error.get("type")), EnvError)
    kind = found if isinstance(found, type) and issubclass(found, SkyRLError) else EnvError
    raise kind(str(error.get("message", data)))


def _write(action: Action) -> Any:
    match action:
        case str():
            return action
        case Message():
            return to_openai(action)
        case ToolCall():
            return _call(action)
    return [_call(call) for call in action]


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = call.arguments if isinstance(call.arguments, str) else dict(call.arguments)
    return {"name": call.name, "arguments": arguments, "id": call.id}
