"""A model behind an OpenAI-compatible HTTP server; with a renderer, token in and token out (vLLM)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx

from skyrl_gym.chat import Renderer, get_dialect
from skyrl_gym.errors import ConfigError, MessageError, PolicyError, PolicyTimeout
from skyrl_gym.messages import from_openai, to_openai
from skyrl_gym.policy.base import Completion, FinishReason, Prompt, Sampling

__all__ = ["OpenAIPolicy"]

RETRIES = 4
RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_FINISH: Mapping[str, FinishReason] = {"length": "length", "abort": "abort"}


class OpenAIPolicy:
    """Asks `/chat/completions`, or with a renderer `/completions` with token ids (`return_token_ids`).

    Connection errors, 429 and 5xx are tried again with exponential backoff; `Retry-After` is honoured.

    Args:
        base_url: of the API, with its version: "http://localhost:8000/v1".
        model: the name that the server knows it by.
        api_key: sent as a bearer token.
        renderer: makes the prompt ids here; only for servers that take and return token ids.
        dialect: reads calls out of text when the server parsed none.
        timeout_s: for one HTTP request.
        max_connections: requests in flight at once.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        renderer: Renderer | None = None,
        dialect: str = "hermes",
        timeout_s: float = 600.0,
        max_connections: int = 1_024,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ConfigError(f"a server's address begins with http:// or https://; got {base_url!r}")
        self.name = model
        self.renderer = renderer
        self._dialect = get_dialect(dialect)
        self._timeout_s = timeout_s
        self._client = httpx.AsyncClient(
            base_url=base_url.rstrip("/"),
            headers={"authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(timeout_s, pool=None),
            limits=httpx.Limits(max_connections=max_connections, max_keepalive_connections=64, keepalive_expiry=15),
        )

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """One completion from the server."""
        if self.renderer is None:
            return self._read_chat(await self._post("/chat/completions", self._chat_body(prompt, sampling)))
        return self._read_tokens(await self._post("/completions", self._token_body(prompt, sampling)))

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    # ---- what is sent

    def _common(self, sampling: Sampling) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.name,
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

    def _token_body(self, prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
        wanted = {"prompt": list(prompt.token_ids or ()), "logprobs": 0, "return_token_ids": True}
        return self._common(sampling) | wanted

    # ---- what comes back

    def _read_chat(self, data: Any) -> Completion:
        try:
            choice = data["choices"][0]
            message = from_openai({"role": "assistant", **choice["message"]})
        except (KeyError, IndexError, TypeError, MessageError) as error:
            raise PolicyError(f"{self.name}: an answer that is no chat completion ({error!r}): {data!r:.200}") from None
        if not message.tool_calls and message.text:
            message = replace(self._dialect.parse(message.text), reasoning=message.reasoning)
        finish = _FINISH.get(choice.get("finish_reason") or "", "stop")
        return Completion(message.text, finish, message=message)

    def _read_tokens(self, data: Any) -> Completion:
        try:
            choice = data["choices"][0]
            ids = choice.get("token_ids")
            logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
            text, finish = choice.get("text") or "", _FINISH.get(choice.get("finish_reason") or "", "stop")
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise PolicyError(f"{self.name}: an answer that is no completion ({error!r}): {data!r:.200}") from None
        if ids is None:
            raise ConfigError(f"{self.name}: the server returns no token ids; use it without a renderer")
        if logprobs is None or len(logprobs) != len(ids) or None in logprobs:
            return Completion(text, finish, tuple(ids))
        return Completion(text, finish, tuple(ids), tuple(logprobs))

    # ---- the wire

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        for attempt in range(RETRIES + 1):
            last = attempt == RETRIES
            try:
                response = await self._client.post(path, json=body)
            except httpx.TimeoutException as error:
                raise PolicyTimeout(f"{self.name}: no answer within {self._timeout_s:g} s") from error
            except httpx.TransportError as error:
                if last:
                    raise PolicyError(f"{self.name}: {type(error).__name__}: {error}") from error
                await _back_off(attempt, None)
                continue
            if response.status_code in RETRIED and not last:
                await _back_off(attempt, response.headers.get("retry-after"))
                continue
            return self._decode(response)

    def _decode(self, response: httpx.Response) -> Any:
        if response.status_code in RETRIED:
            raise PolicyError(f"{self.name}: the server answered {response.status_code}: {response.text[:300]}")
        if response.is_error:
            raise ConfigError(f"{self.name}: the server refused ({response.status_code}): {response.text[:300]}")
        try:
            return response.json()
        except ValueError:
            raise PolicyError(f"{self.name}: an answer that is not JSON: {response.text[:200]!r}") from None


async def _back_off(attempt: int, retry_after: str | None) -> None:
    delay = 0.25 * 2**attempt * random.uniform(0.5, 1.5)
    if retry_after is not None and retry_after.isdigit():
        delay = max(delay, float(retry_after))
    await asyncio.sleep(min(delay, 60.0))
