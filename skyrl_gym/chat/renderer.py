"""Renderer: messages -> token ids for one tokenizer and its chat template, and sampled ids -> message."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

from skyrl_gym.chat.dialects import Dialect, detect_dialect, dialect_names, get_dialect
from skyrl_gym.errors import ConfigError
from skyrl_gym.messages import Conversation, Message, ToolCall, assistant, system, to_openai, user
from skyrl_gym.tools import ToolSpec

__all__ = ["Renderer"]

# Made-up turns, from whose renderings everything about a template is learnt.
_WORD = "skyrl7mark7word"
_PROBE = ToolSpec("probe_tool_7", "A probe.", {"type": "object", "properties": {"x": {"type": "string"}}})
_CALL = ToolCall(_PROBE.name, {"x": _WORD}, "call_probe")


class Renderer:
    """Renders conversations through a Hugging Face tokenizer's own chat template.

    Where the template has a tool section it is used; elsewhere the dialect describes the tools in the
    system message and writes calls and results as text. Text that only looks like a special token (in a
    tool's output, say) is encoded as plain text.

    Args:
        tokenizer: with a chat template.
        dialect: how the model writes calls; "auto" looks at the chat template, and is Hermes, which any model can
            be shown, where that knows no tools.
        thinking: for templates with such a switch (Qwen3, GLM): whether the model is to think; None: as the
            template itself has it.

    Raises:
        ConfigError: the tokenizer has no chat template, the dialect is unknown, or the template has tools in a
            form that is.
    """

    def __init__(self, tokenizer: Any, dialect: str | Dialect = "auto", *, thinking: bool | None = None) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(f"{tokenizer.name_or_path or 'the tokenizer'} has no chat template; set one")
        self.tokenizer = tokenizer
        self._switches = {} if thinking is None else {"enable_thinking": thinking, "thinking": thinking}
        self._rewrites: dict[tuple[str, bool], bool] = {}
        self._tail_marks: dict[str, str] = {}
        if dialect == "auto":
            self.dialect = self._found_dialect()
        else:
            self.dialect = get_dialect(dialect) if isinstance(dialect, str) else dialect

    def _found_dialect(self) -> Dialect:
        found = detect_dialect(self.tokenizer)
        if found is None and (self.native_tools or self.native_calls):
            raise ConfigError(
                f"the chat template of {self.tokenizer.name_or_path or 'the tokenizer'} has tools in a form that no "
                f"dialect here knows; give the tokenizer a response_template, or name a dialect to show the model: "
                f"{', '.join(dialect_names())}"
            )
        return found or get_dialect("auto")

    # ---- what a template is like

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a turn."""
        held = {self.added_tokens[text] for text in self.dialect.ends if text in self.added_tokens}
        if not held and (mark := self._tail_mark("user")) in self.added_tokens:
            held = {self.added_tokens[mark]}
        config = getattr(self.tokenizer, "eos_token_id", None)
        return frozenset(held if config is None else held | {int(config)})

    @cached_property
    def pad_id(self) -> int:
        """An id to pad with; never attended to."""
        pad = self.tokenizer.pad_token_id
        return int(pad if pad is not None else min(self.eos_ids))

    @cached_property
    def native_tools(self) -> bool:
        """The template lists tools."""
        try:
            return _PROBE.name in self._template((user("q"),), (_PROBE,), generation_prompt=False)
        except Exception:  # noqa: BLE001 - templates raise what they like
            return False

    @cached_property
    def native_calls(self) -> bool:
        """The template writes calls and results."""
        result = Message("tool", f"{_WORD}r", tool_call_id=_CALL.id, name=_CALL.name)
        try:
            text = self._template((user("q"), assistant(None, _CALL), result), (), generation_prompt=False)
        except Exception:  # noqa: BLE001 - templates raise what they like
            return False
        return _CALL.name in text and f"{_WORD}r" in text

    @cached_property
    def opens_thought(self) -> bool:
        """The prompt itself ends with an opened `<think>`."""
        text = self._template((user("q"),), (), generation_prompt=True)
        return text.rstrip().endswith("<think>")

    def rewrites_history(self, new: Literal["user", "tool"] = "user", *, thinking: bool = True) -> bool:
        """The template changes an assistant's turn once a user's (or a tool's) message follows it: it strips the
        thought, or what the prompt had opened the turn with."""
        if (new, thinking) not in self._rewrites:
            self._rewrites[new, thinking] = self._find_rewriting(new, thinking)
        return self._rewrites[new, thinking]

    def _find_rewriting(self, new: Literal["user", "tool"], thinking: bool) -> bool:
        opening = (system("s"), user("q"))
        turn = assistant("a") if new == "user" else assistant(None, _CALL)
        turn = replace(turn, reasoning=f"\n{_WORD}t\n" if thinking else None)
        added = user("n") if new == "user" else Message("tool", "r", tool_call_id=_CALL.id, name=_CALL.name)
        try:
            if new == "tool" and self.native_calls and not self._tail_mark("tool"):
                return True  # where a call's turn ends can't be told, so nothing can be put after it
            prompt = self._text(opening, (_PROBE,), generation_prompt=True)
            whole = self._text((*opening, turn, added), (_PROBE,), generation_prompt=True)
        except ConfigError:
            return True
        return not whole.startswith(prompt) or (thinking and f"{_WORD}t" not in whole)

    # ---- messages to ids

    def prompt_ids(self, messages: Conversation, tools: Sequence[ToolSpec] = ()) -> tuple[int, ...]:
        """The whole conversation and the opening of the assistant's next turn.

        Raises:
            ConfigError: the template refuses such a conversation.
        """
        shielded, found = self._shield(messages)
        return self._ids(self._text(shielded, tools, generation_prompt=True), found)

    def extend(self, messages: Conversation, *, ended: bool) -> tuple[int, ...]:
        """The ids that follow a sampled assistant turn: its missing end (unless `ended`), the new messages
        and the opening of the next turn.

        The template itself renders them after a made-up turn, so the cost is that of the new messages, and
        history is never tokenised again.

        Raises:
            ConfigError: the template refuses these messages.
        """
        shielded, found = self._shield(messages)
        tail = self._tail(shielded)
        mark = self._tail_mark("tool" if messages and messages[0].role == "tool" else "user")
        after = tail.partition(mark)[2] if mark else tail
        return self._ids(after if ended else mark + after, found)

    def _tail(self, messages: Conversation) -> str:
        """The text that follows the content of a made-up assistant turn."""
        if not messages or messages[0].role != "tool":
            whole = self._text((user("q"), assistant(_WORD), *messages), (), generation_prompt=True)
            return whole.partition(_WORD)[2]
        # The call ids of the new results, so that templates which look their call up find it.
        calls = tuple(
            ToolCall(m.name or "tool", {"x": _WORD}, m.tool_call_id or "") for m in messages if m.role == "tool"
        )
        try:
            whole = self._text((user("q"), assistant(None, *calls), *messages), (), generation_prompt=True)
        except ConfigError:  # some templates take one call a message
            whole = self._text((user("q"), assistant(None, calls[0]), *messages), (), generation_prompt=True)
            return whole.partition(_WORD)[2]
        return whole.split(_WORD, len(calls))[-1]

    def _tail_mark(self, new: Literal["user", "tool"]) -> str:
        """The token that ends the made-up turn when such a message follows; '' where the template has none."""
        if new not in self._tail_marks:
            self._tail_marks[new] = self._find_tail_mark(new)
        return self._tail_marks[new]

    def _find_tail_mark(self, new: Literal["user", "tool"]) -> str:
        probe = user("n") if new == "user" else Message("tool", "n", tool_call_id=_CALL.id, name=_CALL.name)
        tail = self._tail((probe,))
        ends = {*self.dialect.ends, str(self.tokenizer.eos_token or "")} - {""}
        if new == "tool":
            if not self.native_calls:
                return self._tail_mark("user")
            ends.add(self._tail_mark("user"))
        else:
            head = tail.lstrip()
            ends |= {text for text in self.added_tokens if head.startswith(text)}
        places = {tail.find(text): text for text in ends if text and text in tail}
        return places[min(places)] if places else ""

    # ---- ids to messages

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSpec] = ()) -> Message:
        """The assistant message that sampled ids stand for: ends of turn stripped, the rest byte for byte."""
        ids = list(token_ids)
        while ids and ids[-1] in self.eos_ids:
            ids.pop()
        text = self.decode(ids)
        return self.dialect.parse(f"<think>{text}" if self.opens_thought and "<think>" not in text else text, tools)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Ids as text, special tokens shown."""
        text: str = self.tokenizer.decode(list(token_ids), clean_up_tokenization_spaces=False)
        return text

    # ---- look-alikes of special tokens

    @cached_property
    def added_tokens(self) -> dict[str, int]:
        """Every token that stands outside the vocabulary's text: special ones, and tags like `<think>`."""
        added = {str(token): int(index) for index, token in self.tokenizer.added_tokens_decoder.items()}
        return added | dict(
            zip(self.tokenizer.all_special_tokens, map(int, self.tokenizer.all_special_ids), strict=True)
        )

    @cached_property
    def _look_alikes(self) -> re.Pattern[str]:
        longest_first = sorted(filter(None, self.added_tokens), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def _shield(self, messages: Conversation) -> tuple[Conversation, dict[str, str]]:
        """Look-alikes in messages, replaced by marks that no text holds."""
        found: dict[str, str] = {}
        joined = "".join(text for message in messages for text in _texts(message))
        if not self._look_alikes.search(joined):
            return messages, found

        def mark(match: re.Match[str]) -> str:
            key = f"\uf8ff{len(found)}\uf8fe"
            while key in joined:
                key = f"\uf8ff{key}"
            found[key] = match[0]
            return key

        def shield(text: str) -> str:
            return self._look_alikes.sub(mark, text)

        return tuple(_map_text(message, shield) for message in messages), found

    def _ids(self, text: str, marks: dict[str, str]) -> tuple[int, ...]:
        if not marks:
            return tuple(self.tokenizer.encode(text, add_special_tokens=False))
        pieces = re.split("(" + "|".join(map(re.escape, sorted(marks, key=len, reverse=True))) + ")", text)
        ids: list[int] = []
        for piece in filter(None, pieces):
            if piece in marks:
                ids += self._plain_ids(marks[piece])
            else:
                ids += self.tokenizer.encode(piece, add_special_tokens=False)
        return tuple(ids)

    def _plain_ids(self, text: str) -> list[int]:
        """A look-alike as plain text. Tags that are added but not special are only split by hand."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        if text in self.added_tokens and self.added_tokens[text] in ids:
            return [
                token
                for part in (text[:1], text[1:])
                for token in self.tokenizer.encode(part, add_special_tokens=False)
            ]
        return ids

    # ---- the template

    def _text(self, messages: Conversation, tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
        """A conversation in the form that this template takes."""
        adapted, listed = self._adapt(messages, tools)
        try:
            return self._template(adapted, listed, generation_prompt=generation_prompt)
        except Exception as error:
            raise ConfigError(
                f"the chat template of {self.tokenizer.name_or_path or 'the tokenizer'} refuses this conversation "
                f"({', '.join(message.role for message in messages)}): {error}"
            ) from error

    def _adapt(self, messages: Conversation, tools: Sequence[ToolSpec]) -> tuple[Conversation, Sequence[ToolSpec]]:
        if not self.native_calls:
            messages = self._in_plain_text(messages)
        if self.native_tools or not tools:
            return messages, tools
        section = self.dialect.tools_prompt(tools)
        if messages and messages[0].role == "system":
            return (system(f"{messages[0].text}\n\n{section}"), *messages[1:]), ()
        return (system(section), *messages), ()

    def _in_plain_text(self, messages: Conversation) -> Conversation:
        """Calls as text; results that follow one another as one user message, as many templates want turns to
        alternate."""
        plain: list[Message] = []
        for index, message in enumerate(messages):
            if message.role == "tool" and index and messages[index - 1].role == "tool":
                plain[-1] = user(f"{plain[-1].text}\n{self.dialect.render_result(message.text)}")
            else:
                plain.append(self._plain(message))
        return tuple(plain)

    def _plain(self, message: Message) -> Message:
        if message.role == "tool":
            return user(self.dialect.render_result(message.text))
        if message.tool_calls:
            calls = self.dialect.render(replace(message, reasoning=None))
            return replace(message, content=calls, tool_calls=())
        return message

    def _template(self, messages: Conversation, tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
        text: str = self.tokenizer.apply_chat_template(
            [self._template_dict(message) for message in messages],
            tools=[spec.to_openai() for spec in tools] or None,
            tokenize=False,
            add_generation_prompt=generation_prompt,
            **self._switches,
        )
        return text

    def _template_dict(self, message: Message) -> dict[str, Any]:
        """Templates want text where the OpenAI form has null, and arguments in the form that they can write."""
        data = to_openai(message)
        data["content"] = message.text
        for call, source in zip(data.get("tool_calls", ()), message.tool_calls, strict=True):
            call["id"] = self._call_id(source.id)
            if isinstance(source.arguments, str):
                call["function"]["arguments"] = (
                    source.arguments if self._argument_text else {"arguments": source.arguments}
                )
            elif not self._arguments_as_text:
                call["function"]["arguments"] = dict(source.arguments)
        if message.tool_call_id is not None:
            data["tool_call_id"] = self._call_id(message.tool_call_id)
        if message.reasoning is not None:
            data |= self._thought(message)
        return data

    def _thought(self, message: Message) -> dict[str, Any]:
        """A thought under the name that the template knows, or as text before the content."""
        template = str(self.tokenizer.chat_template)
        for key in ("reasoning_content", "thinking"):
            if re.search(rf"\b\w+(?:\.{key}\b|\[['\"]{key}['\"]\])", template):
                if key == "thinking" and message.tool_calls and message.text:  # gpt-oss takes one of the two
                    return {key: f"{message.reasoning}{message.text}", "content": ""}
                return {key: message.reasoning}
        return {"content": f"<think>{message.reasoning}</think>{message.text}"}

    @cached_property
    def _arguments_as_text(self) -> bool:
        """The template takes arguments as JSON text, and can't write an object (DeepSeek V3)."""
        return not self._takes({"x": "1"}) and self._takes('{"x": "1"}')

    @cached_property
    def _argument_text(self) -> bool:
        """The template can write arguments that are no object as they stand."""
        return self._takes("no object")

    def _takes(self, arguments: Any) -> bool:
        call = {"type": "function", "id": self._call_id("c"), "function": {"name": "f", "arguments": arguments}}
        turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        try:
            self.tokenizer.apply_chat_template(turns, tokenize=False, **self._switches)
        except Exception:  # noqa: BLE001 - templates raise what they like
            return False
        return True

    def _call_id(self, call_id: str) -> str:
        """Mistral's templates refuse ids that aren't of nine letters."""
        if not re.search(r"length\s*!=\s*9", str(self.tokenizer.chat_template)):
            return call_id
        return call_id if re.fullmatch(r"[a-zA-Z0-9]{9}", call_id) else hashlib.sha256(call_id.encode()).hexdigest()[:9]


def _texts(message: Message) -> list[str]:
    texts = [message.text, message.reasoning or "", message.name or ""]
    return texts + [text for call in message.tool_calls for text in (call.name, call.arguments_json())]


def _map_text(message: Message, change: Callable[[str], str]) -> Message:
    return replace(
        message,
        content=change(message.content) if isinstance(message.content, str) else message.content,
        reasoning=None if message.reasoning is None else change(message.reasoning),
        name=None if message.name is None else change(message.name),
        tool_calls=tuple(
            replace(call, name=change(call.name), arguments=_map_value(call.arguments, change))
            for call in message.tool_calls
        ),
    )


def _map_value(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple):
        return [_map_value(item, change) for item in value]
    if isinstance(value, dict):
        return {change(key): _map_value(item, change) for key, item in value.items()}
    return value
