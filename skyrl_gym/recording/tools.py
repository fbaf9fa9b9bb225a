"""Tools whose results are recorded.

What a tool reads may depend on what was written before it in the episode, and may differ when it is asked
again. So a result is filed under the environment, the task, the writing calls before it, the call itself, and
how often the episode has made that call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pydantic_core import to_jsonable_python

from skyrl_gym.errors import EnvError, ToolError
from skyrl_gym.messages import Content, from_openai, to_openai, user
from skyrl_gym.recording.recording import Recording
from skyrl_gym.recording.store import address
from skyrl_gym.tools import ContextEdit, Tool, ToolResult
from skyrl_gym.tools.dispatch import invoke

__all__ = ["ToolRecorder"]

STORE_S = 60.0  # for reading and writing an answer


class ToolRecorder:
    """The tools of one environment, played through a recording, one episode after the other.

    Args:
        recording: where results are filed.
        name: of the environment.
    """

    def __init__(self, recording: Recording, name: str) -> None:
        self.recording = recording
        self._name = name
        self._task = ""
        self._written = ""
        self._asked: Counter[str] = Counter()

    def begin(self, task: str) -> None:
        """A new episode, of the task with this content hash."""
        self._task = "" if self.recording.shared else task
        self._written = ""
        self._asked.clear()

    def fork(self) -> ToolRecorder:
        """A second one at the same point of the episode."""
        twin = ToolRecorder(self.recording, self._name)
        twin._task, twin._written, twin._asked = self._task, self._written, self._asked.copy()
        return twin

    def wrap(self, tool: Tool) -> Tool:
        """The tool with its results recorded, or, where they are not, with its writes remembered."""
        if self._is_recorded(tool):
            fn = self._recorded(tool)
        elif tool.effect == "reads":
            return tool
        else:
            fn = self._remembered(tool)
        # The tool's own deadline is kept inside, where being stopped is a result like any other.
        return replace(tool, fn=fn, timeout_s=tool.timeout_s + STORE_S)

    def _is_recorded(self, tool: Tool) -> bool:
        return tool.effect == "reads" if self.recording.tools is None else tool.name in self.recording.tools

    def _recorded(self, tool: Tool) -> Callable[..., Any]:
        async def call(**arguments: Any) -> Any:
            plain = to_jsonable_python(arguments)
            question: dict[str, Any] = {
                "env": self._name,
                "task": self._task,
                "written": self._written,
                "tool": tool.name,
                "arguments": plain,
            }
            name = address(question)
            question["time"] = self._asked[name]
            self._asked[name] += 1

            async def ask() -> Any:
                try:
                    return _encode(await invoke(tool, arguments))
                except ToolError as error:
                    return {"error": str(error)}

            answer = await self.recording.answer(question, f"{tool.name}({plain})", ask)
            if answer is None:
                raise EnvError(
                    f"{self.recording.store.folder} has no recorded answer to {tool.name}({plain}) at this point of "
                    "the episode: what was recorded took another course (replay-or-record asks for what is missing)"
                )
            return _decode(answer)

        return call

    def _remembered(self, tool: Tool) -> Callable[..., Any]:
        async def call(**arguments: Any) -> Any:
            self._written = address([self._written, tool.name, to_jsonable_python(arguments)])
            return await invoke(tool, arguments)

        return call


def _encode(value: Any) -> dict[str, Any]:
    match value:
        case ToolResult():
            bits = {"is_error": value.is_error, "invalid": value.invalid, "ends_episode": value.ends_episode}
            return {"content": to_openai(user(value.content))["content"], **bits, "reward": value.reward}
        case ContextEdit():
            return {"messages": [to_openai(message) for message in value.messages], "reward": value.reward}
    return {"text": "" if value is None else str(value)}


def _decode(answer: Mapping[str, Any]) -> Any:
    if "error" in answer:
        raise ToolError(answer["error"])
    if "text" in answer:
        return answer["text"]
    if "messages" in answer:
        return ContextEdit(tuple(from_openai(message) for message in answer["messages"]), answer["reward"])
    rest = {name: value for name, value in answer.items() if name != "content"}
    content: Content | None = from_openai({"role": "user", "content": answer["content"]}).content
    return ToolResult(content or "", **rest)
