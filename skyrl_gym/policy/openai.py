"""A model behind OpenAI-compatible HTTP servers; with a renderer, token in and token out (vLLM)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from skyrl_gym.chat import Renderer, get_dialect
from skyrl_gym.errors import ConfigError, MessageError, PolicyError
from skyrl_gym.messages import from_openai, to_openai
from skyrl_gym.policy.base import Completion, FinishReason, PolicyLoad, Prompt, Sampling
from skyrl_gym.policy.servers import Refused, Servers
from skyrl_gym.tools import ToolSpec

__all__ = ["OpenAIPolicy"]

EMPTY_ABORTS = 6  # answers in a row without a token that are followed by another try
ABORTED_S = 0.05  # before the first of them, then doubling: servers are taking new weights
_FINISH: Mapping[str, FinishReason] = {"length": "length", "abort": "abort"}
_TOO_LONG = ("maximum context length", "context_length_exceeded", "maximum model length")


class OpenAIPolicy:
    """Asks `/chat/completions`, or with a renderer `/completions` with token ids (`return_token_ids`).

    With a renderer, a completion that the server aborted (to take new weights, say) is continued from the
    ids that it had; `token_versions` then tells the weights of each id. A prompt that is longer than the
    server's context ends as an empty completion, cut at its length.

    Args:
        servers: address of one server, or of several that serve the same model; see `Servers`.
        model: the name that they know it by.
        api_key: sent as a bearer token.
        renderer: makes the prompt ids here; only for servers that take and return token ids.
        dialect: reads calls out of text when the server parsed none.
        timeout_s: for one completion, with all tries.
        retries: tries after the first that are waited for.
        patience_s: how long no server at all may be reachable before that counts as a try.
        max_connections: open at once; None: as many as this process has room for.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        model: str,
        *,
        api_key: str | None = None,
        renderer: Renderer | None = None,
        dialect: str = "auto",
        timeout_s: float = 600.0,
        retries: int = 4,
        patience_s: float = 0.0,
        max_connections: int | None = None,
    ) -> None:
        self.name = model
        self.renderer = renderer
        self._served_as = model
        self._dialect = get_dialect(dialect)
        self._servers = Servers(
            [servers] if isinstance(servers, str) else servers,
            api_key=api_key, timeout_s=timeout_s, retries=retries, patience_s=patience_s,
            max_connections=max_connections,
        )  # fmt: skip

    @property
    def version(self) -> int:
        """Of the weights that the servers hold; whoever loads new ones counts it up."""
        return self._servers.version

    @version.setter
    def version(self, version: int) -> None:
        self._servers.version = version

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """One completion from a server."""
        if sampling.max_tokens == 0:
            return _nothing(self.version, tokens=self.renderer is not None)
        try:
            if self.renderer is None:
                return await self._complete_chat(prompt, sampling)
            return await self._complete_tokens(prompt, sampling)
        except Refused as refusal:
            if refusal.status == 400 and any(mark in str(refusal) for mark in _TOO_LONG):
                return _nothing(self.version, tokens=self.renderer is not None)
            raise ConfigError(f"{self.name}: {refusal}") from None
        except PolicyError as error:
            raise type(error)(f"{self.name}: {error}") from error.__cause__

    async def current_load(self) -> PolicyLoad:
        """What vLLM's /metrics say, over all servers; for others our own requests in flight."""
        return await self._servers.load()

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._servers.aclose()

    async def _complete_chat(self, prompt: Prompt, sampling: Sampling) -> Completion:
        body = self._chat_body(prompt, sampling)
        answer = await self._servers.post("/chat/completions", body, session=prompt.session)
        return replace(self._read_chat(answer.data, prompt.tools), policy_version=answer.version)

    async def _complete_tokens(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """Asks until the completion has ended, each time from what there is."""
        parts: list[Completion] = []
        asked, held, empty = len(prompt.token_ids or ()), tuple(prompt.token_ids or ()), 0
        while True:
            done = len(held) - asked
            # A seed begins the same sequence of draws again, so what is continued gets another.
            seed = None if sampling.seed is None else sampling.seed + done
            body = self._token_body(held, replace(sampling, max_tokens=sampling.max_tokens - done, seed=seed))
            answer = await self._servers.post("/completions", body, session=prompt.session)
            part = replace(self._read_tokens(answer.data), policy_version=answer.version)
            ids = part.token_ids or ()
            parts.append(part)
            held += ids
            if part.finish_reason != "abort":
                return _joined(parts)
            if len(held) - asked >= sampling.max_tokens:
                return replace(_joined(parts), finish_reason="length")
            empty = 0 if ids else empty + 1
            if empty > EMPTY_ABORTS:
                raise PolicyError("the server aborted the request again and again")
            if empty:
                await asyncio.sleep(ABORTED_S * 2 ** (empty - 1))

    # ---- what is sent

    def _common(self, sampling: Sampling) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._served_as,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
        }
        # Not part of OpenAI's own API, so only sent when asked for.
        extra = {"top_k": sampling.top_k or None, "seed": sampling.seed}
        return body | {key: value for key, value in extra.items() if value is not None}

    def _chat_body(self, prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
        body = self._common(sampling) | {"messages": [to_openai(message) for message in prompt.messages]}
        return body | {"tools": [spec.to_openai() for spec in prompt.tools]} if prompt.tools else body

    def _token_body(self, prompt_ids: Sequence[int], sampling: Sampling) -> dict[str, Any]:
        wanted = {"prompt": list(prompt_ids), "logprobs": 0, "return_token_ids": True}
        return self._common(sampling) | wanted

    # ---- what comes back

    def _read_chat(self, data: Any, tools: Sequence[ToolSpec]) -> Completion:
        try:
            choice = data["choices"][0]
            message = from_openai({"role": "assistant", **choice["message"]})
        except (KeyError, IndexError, TypeError, MessageError) as error:
            raise PolicyError(f"an answer that is no chat completion ({error!r}): {data!r:.200}") from None
        if not message.tool_calls and message.text:
            message = replace(self._dialect.parse(message.text, tools), reasoning=message.reasoning)
        finish = _FINISH.get(choice.get("finish_reason") or "", "stop")
        return Completion(message.text, finish, message=message, usage=_usage(data))

    def _read_tokens(self, data: Any) -> Completion:
        try:
            choice = data["choices"][0]
            ids = choice.get("token_ids")
            logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
            text, finish = choice.get("text") or "", _FINISH.get(choice.get("finish_reason") or "", "stop")
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise PolicyError(f"an answer that is no completion ({error!r}): {data!r:.200}") from None
        if ids is None:
            raise ConfigError(f"{self.name}: the server returns no token ids; use it without a renderer")
        if logprobs is None or len(logprobs) != len(ids) or None in logprobs:
            return Completion(text, finish, tuple(ids))
        return Completion(text, finish, tuple(ids), tuple(logprobs))


def _joined(parts: Sequence[Completion]) -> Completion:
    """One completion from its pieces; versions are told for each id where they differ."""
    last = parts[-1]
    if len(parts) == 1:
        return last
    versions = tuple(part.policy_version for part in parts for _ in part.token_ids or ())
    known = all(part.logprobs is not None for part in parts)
    return replace(
        last,
        text="".join(part.text for part in parts),
        token_ids=tuple(token for part in parts for token in part.token_ids or ()),
        logprobs=tuple(value for part in parts for value in part.logprobs or ()) if known else None,
        policy_version=(*versions, last.policy_version)[0],
        token_versions=versions if len(set(versions)) > 1 else None,
    )


def _nothing(version: int, *, tokens: bool) -> Completion:
    """A completion for which there was no room."""
    empty = () if tokens else None
    return Completion("", "length", empty, empty, policy_version=version)


def _usage(data: Mapping[str, Any]) -> tuple[int, int] | None:
    match data.get("usage"):
        case {"prompt_tokens": int(asked), "completion_tokens": int(sampled)}:
            return asked, sampled
    return None
