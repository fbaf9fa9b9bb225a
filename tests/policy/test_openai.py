"""The HTTP policy against a real server that misbehaves in every way."""

import asyncio
from typing import Any

import pytest

from skyrl_gym.chat import Renderer
from skyrl_gym.chat.testing import tiny_tokenizer
from skyrl_gym.errors import ConfigError, PolicyError, PolicyTimeout
from skyrl_gym.messages import ToolCall, user
from skyrl_gym.policy import Completion, Prompt, Sampling, open_policy
from skyrl_gym.policy.openai import OpenAIPolicy
from skyrl_gym.tools import ToolSpec

PROMPT = Prompt((user("q"),), (ToolSpec("f", "F.", {"type": "object", "properties": {}}),))


def ask(policy: OpenAIPolicy, prompt: Prompt = PROMPT, sampling: Sampling = Sampling(max_tokens=7)) -> Completion:
    async def run() -> Completion:
        try:
            return await policy.complete(prompt, sampling)
        finally:
            await policy.aclose()

    return asyncio.run(run())


def chat(content: Any = None, calls: Any = None, finish: str = "stop") -> tuple[int, dict[str, Any]]:
    message = {"role": "assistant", "content": content, "tool_calls": calls}
    return 200, {"choices": [{"message": message, "finish_reason": finish}]}


def test_tool_calls_of_the_server_are_taken(server: Any) -> None:
    server.answer = lambda path, body: chat(
        calls=[{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}],
        finish="tool_calls",
    )
    found = ask(OpenAIPolicy(server.url, "m", api_key="sk-1"))
    assert found.message and found.message.tool_calls == (ToolCall("f", {"x": 1}, "c1"),)
    assert (found.token_ids, found.logprobs, found.finish_reason) == (None, None, "stop")
    path, body, headers = server.seen[0]
    assert path == "/v1/chat/completions"
    assert body["messages"] == [{"role": "user", "content": "q"}]
    assert body["tools"][0]["function"]["name"] == "f"
    assert "seed" not in body and "top_k" not in body
    assert headers["authorization"] == "Bearer sk-1"


def test_calls_written_as_text_are_read_by_our_dialect(server: Any) -> None:
    server.answer = lambda path, body: chat('<tool_call>{"name": "f", "arguments": {}}</tool_call>')
    found = ask(OpenAIPolicy(server.url, "m"))
    assert found.message and found.message.tool_calls == (ToolCall("f", {}),)


def test_tokens_in_tokens_out(server: Any) -> None:
    choice = {
        "text": "ab",
        "token_ids": [5, 6],
        "logprobs": {"token_logprobs": [-0.5, -1.5]},
        "finish_reason": "length",
    }
    server.answer = lambda path, body: (200, {"choices": [choice]})
    renderer = Renderer(tiny_tokenizer())
    found = ask(OpenAIPolicy(server.url, "m", renderer=renderer), Prompt((), (), (1, 2, 3)))
    assert (found.token_ids, found.logprobs, found.finish_reason) == ((5, 6), (-0.5, -1.5), "length")
    path, body, _ = server.seen[0]
    assert (path, body["prompt"], body["return_token_ids"]) == ("/v1/completions", [1, 2, 3], True)


@pytest.mark.parametrize("logprobs", [None, {"token_logprobs": [None, -1.0]}, {"token_logprobs": [-1.0]}])
def test_missing_logprobs_stay_missing(server: Any, logprobs: Any) -> None:
    server.answer = lambda path, body: (200, {"choices": [{"text": "", "token_ids": [5, 6], "logprobs": logprobs}]})
    policy = OpenAIPolicy(server.url, "m", renderer=Renderer(tiny_tokenizer()))
    assert ask(policy, Prompt((), (), (1,))).logprobs is None


def test_a_server_without_token_ids_is_named(server: Any) -> None:
    server.answer = lambda path, body: (200, {"choices": [{"text": "x"}]})
    policy = OpenAIPolicy(server.url, "m", renderer=Renderer(tiny_tokenizer()))
    with pytest.raises(ConfigError, match="returns no token ids"):
        ask(policy, Prompt((), (), (1,)))


@pytest.mark.parametrize("fault", [(500, {}), (429, {}), (503, {}), "drop"])
def test_passing_faults_are_tried_again(server: Any, fault: Any) -> None:
    replies = [fault, fault, chat("fine")]
    server.answer = lambda path, body: replies.pop(0)
    assert ask(OpenAIPolicy(server.url, "m")).text == "fine"
    assert len(server.seen) == 3


def test_lasting_faults_are_the_policys_failure(server: Any) -> None:
    server.answer = lambda path, body: (500, {"error": "overloaded"})
    with pytest.raises(PolicyError, match=r"answered 500: .*overloaded"):
        ask(OpenAIPolicy(server.url, "m", retries=1))
    server.answer = lambda path, body: "drop"
    with pytest.raises(PolicyError, match="Disconnected"):
        ask(OpenAIPolicy(server.url, "m", retries=1))
    with pytest.raises(PolicyError, match=r"m: 127\.0\.0\.1:9: ClientConnector"):
        ask(OpenAIPolicy("http://127.0.0.1:9/v1", "m", retries=0))


def test_a_server_that_stalls_times_out_by_a_name_of_its_own(server: Any) -> None:
    server.answer = lambda path, body: "stall"
    with pytest.raises(PolicyTimeout, match=r"within 0\.3 s"):
        ask(OpenAIPolicy(server.url, "m", timeout_s=0.3))


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_refusal_is_the_users_error_in_the_servers_words_and_without_the_key(server: Any, status: int) -> None:
    server.answer = lambda path, body: (status, {"error": "no such model: m"})
    with pytest.raises(ConfigError, match=f"{status}.*no such model") as caught:
        ask(OpenAIPolicy(server.url, "m", api_key="sk-secret"))
    assert "sk-secret" not in str(caught.value)
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    "data", [b"<html>", {}, {"choices": []}, {"choices": [{}]}, {"choices": [{"message": {"content": 3}}]}]
)
def test_an_answer_that_is_none_is_the_policys_failure(server: Any, data: Any) -> None:
    server.answer = lambda path, body: (200, data)
    with pytest.raises(PolicyError, match="an answer that is"):
        ask(OpenAIPolicy(server.url, "m"))


TOO_LONG = "This model's maximum context length is 64 tokens. However, your request has 90 input tokens."


@pytest.mark.parametrize("renderer", [None, Renderer(tiny_tokenizer())])
def test_a_prompt_longer_than_the_context_is_a_completion_without_room(server: Any, renderer: Any) -> None:
    server.answer = lambda path, body: (400, {"error": {"message": TOO_LONG}})
    found = ask(OpenAIPolicy(server.url, "m", renderer=renderer), Prompt((user("q"),), (), (1, 2)))
    assert (found.text, found.finish_reason) == ("", "length")
    assert found.token_ids == (None if renderer is None else ())


def test_no_tokens_wanted_none_asked_for(server: Any) -> None:
    found = ask(OpenAIPolicy(server.url, "m"), sampling=Sampling(max_tokens=0))
    assert (found.text, found.finish_reason, server.seen) == ("", "length", [])


@pytest.mark.parametrize("cut", range(1, 8))
def test_an_aborted_completion_goes_on_from_its_ids_within_its_budget(server: Any, cut: int) -> None:
    """The server has 1, 2, 3 ... to say, and is interrupted each `cut` tokens, with new weights each time."""
    policy = OpenAIPolicy(server.url, "m", renderer=Renderer(tiny_tokenizer()))

    def answer(path: str, body: Any) -> tuple[int, Any]:
        start, room = len(body["prompt"]), body["max_tokens"]
        ids = list(range(start, start + min(cut, room)))
        policy.version += 1
        finish = "abort" if cut < room else "length"
        logprobs = {"token_logprobs": [-float(token) for token in ids]}
        return 200, {"choices": [{"text": "x" * len(ids), "token_ids": ids, "logprobs": logprobs,
                                  "finish_reason": finish}]}  # fmt: skip

    server.answer = answer
    found = ask(policy, Prompt((), (), (0,)), Sampling(max_tokens=7))
    assert found.token_ids == tuple(range(1, 8))
    assert found.logprobs == tuple(-float(token) for token in found.token_ids)
    assert (found.text, found.finish_reason, found.policy_version) == ("x" * 7, "length", 0)
    versions = tuple(i // cut for i in range(7))
    assert found.token_versions == (versions if len(set(versions)) > 1 else None)


def test_aborts_without_a_token_are_in_the_end_the_policys_failure(server: Any) -> None:
    server.answer = lambda path, body: (200, {"choices": [{"text": "", "token_ids": [], "finish_reason": "abort"}]})
    with pytest.raises(PolicyError, match="aborted the request again and again"):
        ask(OpenAIPolicy(server.url, "m", renderer=Renderer(tiny_tokenizer())), Prompt((), (), (1,)))


def test_many_requests_at_once(server: Any) -> None:
    server.answer = lambda path, body: chat(body["messages"][0]["content"])

    async def run() -> list[str]:
        policy = OpenAIPolicy(server.url, "m")
        prompts = [Prompt((user(str(i)),)) for i in range(200)]
        found = await asyncio.gather(*(policy.complete(p, Sampling()) for p in prompts))
        await policy.aclose()
        return [completion.text for completion in found]

    assert asyncio.run(run()) == [str(i) for i in range(200)]


def test_names_of_policies() -> None:
    with pytest.raises(ConfigError, match="name the model behind the server"):
        open_policy("http://localhost:8000/v1")
    assert open_policy("http://localhost:8000/v1#qwen").name == "qwen"
    assert open_policy("http://a:1/v1,https://b/v1#org/qwen").name == "org/qwen"
    for wrong in ("http://a/v1,b/v1#qwen", "http://#qwen", "http://a/v1,#qwen"):
        with pytest.raises(ConfigError, match="a server's address is"):
            open_policy(wrong)
    with pytest.raises(ConfigError, match="no model folder"):
        open_policy("./nowhere")
