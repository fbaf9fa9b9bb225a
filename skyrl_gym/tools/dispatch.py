"""Running the calls of one turn: each is answered, none can block the event loop or outlive its deadline."""

from __future__ import annotations

import asyncio
import difflib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import anyio
import anyio.to_thread

from skyrl_gym.alarm import Alarm
from skyrl_gym.errors import ToolError
from skyrl_gym.messages import ToolCall
from skyrl_gym.tools.result import ContextEdit, ToolResult, cap_text
from skyrl_gym.tools.tool import Tool, ToolArgumentError

__all__ = ["invoke", "run_calls"]

Outcome: TypeAlias = ToolResult | ContextEdit
_NOT_EXECUTED = "Not executed: an earlier call in this message ended the turn."


async def run_calls(tools: Mapping[str, Tool], calls: Sequence[ToolCall], alarm: Alarm | None = None) -> list[Outcome]:
    """Runs calls and returns one outcome for each, in order.

    Neighbouring calls of reading tools run side by side; writes run alone, in order. Once a call has ended
    the episode or replaced the context, the rest are answered "not executed". `alarm` saves making one.
    """
    outcomes: list[Outcome] = []
    while len(outcomes) < len(calls):
        if outcomes and _is_last(outcomes[-1]):
            outcomes.append(ToolResult(_NOT_EXECUTED, is_error=True))
            continue
        batch = _next_batch(tools, calls[len(outcomes) :])
        if len(batch) == 1:  # the usual case, at half of what a task costs
            outcomes.append(await _run_call(tools, batch[0], alarm))
        else:
            outcomes += await asyncio.gather(*(_run_call(tools, call) for call in batch))
    return outcomes


def _is_last(outcome: Outcome) -> bool:
    return isinstance(outcome, ContextEdit) or outcome.ends_episode or outcome.content == _NOT_EXECUTED


def _next_batch(tools: Mapping[str, Tool], calls: Sequence[ToolCall]) -> Sequence[ToolCall]:
    reads = 0
    while reads < len(calls) and (found := tools.get(calls[reads].name)) and found.effect == "reads":
        reads += 1
    return calls[: max(reads, 1)]


async def _run_call(tools: Mapping[str, Tool], call: ToolCall, alarm: Alarm | None = None) -> Outcome:
    found = tools.get(call.name)
    if found is None:
        return ToolResult(_unknown(tools, call.name), is_error=True, invalid=True)
    try:
        arguments = found.parse(call.arguments)
    except ToolArgumentError as error:
        return ToolResult(str(error), is_error=True, invalid=True)
    try:
        return _outcome(found, await invoke(found, arguments, alarm))
    except ToolError as error:
        return ToolResult(cap_text(str(error), found.max_bytes), is_error=True)


async def invoke(found: Tool, arguments: dict[str, Any], alarm: Alarm | None = None) -> Any:
    """What a tool's function gives for arguments that fit it, within the tool's deadline.

    The deadline is kept by `alarm`, else by one of the call's own.

    Raises:
        ToolError: it says so, or it was stopped at its deadline; the text is for the model.
    """
    clock = alarm or Alarm()
    try:
        with clock.after(found.timeout_s):
            return await _call(found, arguments)
    except TimeoutError as error:
        if not clock.rang:
            raise ToolError(f"{found.name} raised TimeoutError: {error}") from error
        raise ToolError(f"{found.name} was stopped after {found.timeout_s:g} s.") from error
    finally:
        if alarm is None:
            clock.close()


async def _call(found: Tool, arguments: dict[str, Any]) -> Any:
    if inspect.iscoroutinefunction(found.fn):
        return await found.fn(**arguments)
    # A limiter per call: a fixed pool would let slow tools of some episodes hold up those of others.
    return await anyio.to_thread.run_sync(
        lambda: found.fn(**arguments), abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
    )


def _outcome(found: Tool, value: Any) -> Outcome:
    if isinstance(value, ContextEdit):
        return value
    result = value if isinstance(value, ToolResult) else ToolResult(_as_text(value))
    if isinstance(result.content, tuple):
        return result
    content = cap_text(result.content, found.max_bytes) or f"{found.name} gave no output."
    return result if content is result.content else replace(result, content=content)


def _as_text(value: Any) -> str:
    return "" if value is None else str(value)


def _unknown(tools: Mapping[str, Tool], name: str) -> str:
    near = difflib.get_close_matches(name, tools, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return (
        f"There is no tool named {name!r}.{hint} The tools are: {'; '.join(t.spec.signature() for t in tools.values())}"
    )
