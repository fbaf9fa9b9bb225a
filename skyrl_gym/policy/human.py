"""A person at the terminal."""

from __future__ import annotations

import asyncio
import json
import shlex
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from skyrl_gym.chat import Renderer
from skyrl_gym.errors import ConfigError, PolicyError
from skyrl_gym.messages import Conversation, Message, ToolCall, assistant
from skyrl_gym.policy.base import Completion, Prompt, Sampling
from skyrl_gym.tools import ToolSpec

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["HumanPolicy", "read_call"]

HELP = """Call a tool:    name argument=value other="some text"    or    name {"argument": "value"}
One argument:   name the whole rest of the line
Several lines:  end a line with \\ to go on in the next
Also:           :tools  :help  :quit"""


class HumanPolicy:
    """Shows what is new in the conversation and reads the next call.

    Args:
        console: where to write.
        read: reads one line for a prompt; raises EOFError at the end of input.
    """

    def __init__(self, console: Console, read: Callable[[str], str] = input) -> None:
        self.name = "human"
        self.renderer: Renderer | None = None
        self._console = console
        self._read = read
        self._shown: Conversation = ()

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """What the person types, as a call.

        Raises:
            PolicyError: the person left.
        """
        self._show(prompt.messages)
        while True:
            line = await _aside(self._read_lines)
            match line.strip():
                case "":
                    continue
                case ":quit":
                    raise PolicyError("the player left")
                case ":help":
                    self._console.print(HELP, markup=False)
                case ":tools":
                    self._console.print("\n".join(_describe(spec) for spec in prompt.tools), markup=False)
                case text:
                    try:
                        return Completion(text, message=assistant(None, read_call(text, prompt.tools)))
                    except ConfigError as error:
                        self._console.print(str(error), style="red", markup=False)

    async def aclose(self) -> None:
        """Holds nothing."""

    def _read_lines(self) -> str:
        lines: list[str] = []
        try:
            while (line := self._read("> " if not lines else ". ")).endswith("\\"):
                lines.append(line[:-1])
        except (EOFError, KeyboardInterrupt):
            return ":quit"
        return "\n".join([*lines, line])

    def _show(self, messages: Conversation) -> None:
        same = messages[: len(self._shown)] == self._shown
        for message in messages[len(self._shown) if same else 0 :]:
            if message.role != "assistant":
                self._show_one(message)
        self._shown = messages

    def _show_one(self, message: Message) -> None:
        self._console.rule(f"{message.role}{f' ({message.name})' if message.name else ''}", align="left", style="dim")
        self._console.print(message.text, markup=False, highlight=False)


async def _aside(read: Callable[[], str]) -> str:
    """Reads in a daemon thread: one that waits for a line would hold up Ctrl-C until the next line."""
    done: Future[str] = Future()

    def work() -> None:
        done.set_running_or_notify_cancel()
        try:
            done.set_result(read())
        except Exception as error:  # noqa: BLE001 - raised where it is awaited
            done.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return await asyncio.wrap_future(done)


def _describe(spec: ToolSpec) -> str:
    return f"{spec.signature()}\n    {spec.description}"


def read_call(text: str, tools: tuple[ToolSpec, ...]) -> ToolCall:
    """A call from what a person typed; see `HELP` for the forms.

    Raises:
        ConfigError: no such tool, or a form that can't be read.
    """
    name, _, rest = text.strip().partition(" ")
    spec = next((spec for spec in tools if spec.name == name), None)
    if spec is None:
        raise ConfigError(f"no tool {name!r}; there are: {', '.join(s.signature() for s in tools)}")
    rest = rest.strip()
    if rest.startswith("{"):
        try:
            return ToolCall(name, dict(json.loads(rest)))
        except ValueError as error:
            raise ConfigError(f"not a JSON object: {error}") from None
    properties: dict[str, Any] = spec.parameters.get("properties", {})
    if not rest:
        return ToolCall(name)
    if not any(rest.startswith(f"{key}=") for key in properties):
        required = list(spec.parameters.get("required", ())) or list(properties)
        return ToolCall(name, {required[0]: rest} if required else {})
    try:
        pairs = [word.partition("=") for word in shlex.split(rest)]
    except ValueError as error:
        raise ConfigError(f"can't read the arguments: {error}") from None
    return ToolCall(name, {key: _value(value, properties.get(key, {})) for key, _, value in pairs})


def _value(text: str, schema: dict[str, Any]) -> Any:
    if schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
