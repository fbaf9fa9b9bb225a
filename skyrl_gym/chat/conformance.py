"""The conformance kit: does token in, token out hold for a tokenizer, its chat template and a dialect?

Every check is a question with one of three answers. It *holds*. It *forks*: the template rewrites history, so an
episode becomes several training sequences, which is right but costs more. Or it *fails*, and the detail says what
came and what was expected: such a model must not be trained with this dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from skyrl_gym.chat.renderer import Renderer
from skyrl_gym.errors import ConfigError
from skyrl_gym.messages import Conversation, Message, ToolCall, assistant, system, tool_result, user
from skyrl_gym.tools import ToolSpec

__all__ = ["Verdict", "check_renderer"]

Outcome = Literal["holds", "forks", "fails"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one check, and what there is to say about it."""

    check: str
    outcome: Outcome
    detail: str = ""


class _Fault(Exception):
    """A check fails; the text says what came and what was expected."""


class _Fork(Exception):
    """The template rewrites history here; the text says where."""


_TOOL = ToolSpec(
    "look_up",
    "Looks something up.",
    {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer"},
            "exact": {"type": "boolean"},
            "fields": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["text"],
    },
)
_CALLS = [
    ToolCall("look_up", {"text": "rivers"}, "callaaaa1"),
    ToolCall("look_up", {"text": "line 1\nline 2\n\n  indented", "count": 3, "exact": True}, "callaaaa2"),
    ToolCall("look_up", {"text": 'quotes " and \\ and {braces} <b>', "fields": ["é", "漢字", "🙂"]}, "callaaaa3"),
    ToolCall("look_up", {"text": "42", "count": -1, "exact": False, "fields": []}, "callaaaa4"),
]
_OPENING: Conversation = (system("Be brief."), user("Which river?"))
_SPACES = ["", " ", "\n", "\t", "\r\n", "  x  ", "x\n\n", "\u2028"]
_LONG = "🙂é漢字 naïve Ω≈ç√ اَلْعَرَبِيَّةُ हिन्दी \u200d\ufeff 𝒳 " * 80


def check_renderer(renderer: Renderer) -> list[Verdict]:
    """All checks, in a fixed order; never raises."""
    return [_ask(question, check, renderer) for question, check in _CHECKS.items()]


def _ask(question: str, check: Callable[[Renderer], None], renderer: Renderer) -> Verdict:
    try:
        check(renderer)
    except _Fork as fork:
        return Verdict(question, "forks", str(fork))
    except (_Fault, ConfigError) as fault:
        return Verdict(question, "fails", str(fault))
    except Exception as error:  # noqa: BLE001 - a template may raise anything, and that is the verdict
        return Verdict(question, "fails", f"{type(error).__name__}: {error}")
    return Verdict(question, "holds")


# ---- prompts grow by appending


def _extends(renderer: Renderer, answer: Message, new: Conversation) -> None:
    """What is appended is what the template itself writes at the end of the whole conversation."""
    whole = renderer.decode(renderer.prompt_ids((*_OPENING, answer, *new), (_TOOL,)))
    kind: Literal["user", "tool"] = "tool" if all(message.role == "tool" for message in new) else "user"
    if renderer.rewrites_history(kind, thinking=answer.reasoning is not None):
        raise _Fork(f"the template writes an assistant's turn anew once a {kind} message follows it")
    prompt = renderer.decode(renderer.prompt_ids(_OPENING, (_TOOL,)))
    if not whole.startswith(prompt):
        raise _Fault(f"the prompt {_end(prompt)} is no beginning of the conversation's rendering {_end(whole)}")
    added = renderer.decode(renderer.extend(new, ended=True))
    if not whole.endswith(added):
        raise _Fault(f"appended is {_end(added)}, but the template writes {_end(whole)}")


def _user_message(renderer: Renderer) -> None:
    _extends(renderer, assistant("The Rhine."), (user("And in France?"),))


def _one_result(renderer: Renderer) -> None:
    _extends(renderer, assistant(None, _CALLS[0]), (tool_result(_CALLS[0], "the Rhine"),))


def _results_in_a_row(renderer: Renderer) -> None:
    calls = _CALLS[:3]
    results = tuple(tool_result(call, f"result {index}") for index, call in enumerate(calls))
    try:
        _extends(renderer, assistant(None, *calls), results)
    except ConfigError:  # a template of one call a message
        _extends(renderer, assistant(None, calls[0]), results[:1])


def _thought_before_user(renderer: Renderer) -> None:
    _extends(renderer, replace(assistant("The Rhine."), reasoning="\nhm\n"), (user("And in France?"),))


def _thought_before_result(renderer: Renderer) -> None:
    answer = replace(assistant(None, _CALLS[0]), reasoning="\nhm\n")
    _extends(renderer, answer, (tool_result(_CALLS[0], "the Rhine"),))


# ---- calls and thoughts


def _written_by_the_template(renderer: Renderer) -> None:
    for call in _CALLS:
        asked = renderer.prompt_ids(_OPENING, (_TOOL,))
        turns = (assistant(None, call), tool_result(call, "a result"))
        whole = renderer.prompt_ids((*_OPENING, *turns), (_TOOL,))
        shared = next((i for i, (a, b) in enumerate(zip(asked, whole, strict=False)) if a != b), len(asked))
        answer = renderer.decode(whole[shared:])
        for token in renderer.eos_ids:
            answer = answer.partition(renderer.decode((token,)))[0]
        _same_call(call, renderer.dialect.parse(answer, (_TOOL,)).tool_calls[:1], answer)


def _written_by_the_dialect(renderer: Renderer) -> None:
    for call in _CALLS:
        if renderer.dialect.name == "codeact" and len(call.arguments) > 1:
            continue
        text = renderer.dialect.render(assistant(None, call))
        sampled = f"</think>{text}" if renderer.opens_thought else text
        ids = renderer.tokenizer.encode(sampled, add_special_tokens=False)
        _same_call(call, renderer.parse((*ids, min(renderer.eos_ids)), (_TOOL,)).tool_calls, text)


def _same_call(call: ToolCall, found: tuple[ToolCall, ...], text: str) -> None:
    if len(found) != 1 or (found[0].name, found[0].arguments) != (call.name, call.arguments):
        raise _Fault(f"{_end(text)} was read as {found or 'no call'}; expected {call.name}({call.arguments_json()})")


def _thought_is_no_call(renderer: Renderer) -> None:
    written = renderer.dialect.render(assistant(None, _CALLS[0]))
    if "<|" in written and renderer.dialect.name == "harmony":
        return  # a harmony message has one channel: a call can't stand inside a thought
    found = renderer.dialect.parse(f"<think>I could write {written} here.</think>Fine.", (_TOOL,))
    if found.tool_calls or found.text != "Fine.":
        raise _Fault(f"a call inside <think> was read as {found}")


def _malformed_calls_in_history(renderer: Renderer) -> None:
    call = ToolCall("look_up", '{"text": ', "callaaaa5")
    renderer.prompt_ids((*_OPENING, assistant(None, call), tool_result(call, "no JSON")), (_TOOL,))


# ---- ends, spaces, letters


def _ends_of_turn(renderer: Renderer) -> None:
    if not renderer.eos_ids:
        raise _Fault("no token ends a turn: set the tokenizer's eos_token")
    cut, ended = (renderer.extend((user("n"),), ended=ended) for ended in (False, True))
    if cut == ended:
        raise _Fault(f"a cut turn gets no end: {_end(renderer.decode(cut))} follows it")
    if ended[:1] and cut[len(cut) - len(ended) :] != ended:
        raise _Fault(
            f"after an ended turn comes {_end(renderer.decode(ended))}, after a cut one {renderer.decode(cut)!r}"
        )


def _spaces(renderer: Renderer) -> None:
    for text in _SPACES:
        renderer.prompt_ids((system(text), user(text)), (_TOOL,))
        renderer.extend((user(text),), ended=True)
        renderer.extend((tool_result(_CALLS[0], text),), ended=True)
        for content in (text, None):
            renderer.prompt_ids((*_OPENING, assistant(content, _CALLS[0]), tool_result(_CALLS[0], text)), (_TOOL,))
        _kept(renderer, text)


def _long_unicode(renderer: Renderer) -> None:
    _kept(renderer, _LONG)
    for name, ids in {
        "user message": renderer.prompt_ids((user(_LONG),), (_TOOL,)),
        "appended message": renderer.extend((user(_LONG),), ended=True),
    }.items():
        if _LONG.strip() not in renderer.decode(ids):
            raise _Fault(f"a long {name} doesn't come back from its ids")


def _kept(renderer: Renderer, text: str) -> None:
    ids = renderer.tokenizer.encode(text, add_special_tokens=False)
    opened = "</think>" if renderer.opens_thought else ""
    found = renderer.dialect.parse(opened + renderer.decode(ids)).text
    if found != text:
        raise _Fault(f"an answer of {_end(text)} was read as {_end(found)}")


def _look_alikes(renderer: Renderer) -> None:
    for text, token in renderer.added_tokens.items():
        for kind, honest, attacked in _attacked(renderer, text):
            if honest.count(token) != attacked.count(token):
                raise _Fault(f"{text!r} in a {kind} message becomes the token {token}")


def _attacked(renderer: Renderer, text: str) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    yield "user", renderer.prompt_ids((user("x y"),)), renderer.prompt_ids((user(f"x{text}y"),))
    results = (tool_result(_CALLS[0], said) for said in ("x y", f"x{text}y"))
    honest, attacked = (renderer.extend((result,), ended=True) for result in results)
    yield "tool", honest, attacked


def _end(text: str) -> str:
    return repr(text if len(text) < 160 else f"…{text[-160:]}")


_CHECKS: dict[str, Callable[[Renderer], None]] = {
    "a user's message only appends": _user_message,
    "a tool's result only appends": _one_result,
    "several results in a row only append": _results_in_a_row,
    "a thought stays when a user's message follows": _thought_before_user,
    "a thought stays when a tool's result follows": _thought_before_result,
    "calls that the template writes are read back": _written_by_the_template,
    "calls that the dialect writes are read back": _written_by_the_dialect,
    "a call inside a thought is no call": _thought_is_no_call,
    "a malformed call in history can be rendered": _malformed_calls_in_history,
    "turns end, cut ones too": _ends_of_turn,
    "empty and blank content": _spaces,
    "long text in many scripts": _long_unicode,
    "look-alikes of special tokens stay text": _look_alikes,
}
