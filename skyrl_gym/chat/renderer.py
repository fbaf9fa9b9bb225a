"""Renderer: messages -> token ids for one tokenizer and its chat template, and sampled ids -> message."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from skyrl_gym.chat.dialects import Dialect, get_dialect
from skyrl_gym.errors import ConfigError
from skyrl_gym.messages import Conversation, Message, ToolCall, assistant, system, to_openai, user
from skyrl_gym.tools import ToolSpec

__all__ = ["Renderer"]

_PROBE = ToolSpec("probe_tool_7", "A probe.", {"type": "object", "properties": {}})


class Renderer:
    """Renders conversations through a Hugging Face tokenizer's own chat template.

    Where the template has a tool section it is used; elsewhere the dialect describes the tools in the
    system message and writes calls and results as text. Text that only looks like a special token (in a
    tool's output, say) is encoded as plain text.

    Raises:
        ConfigError: the tokenizer has no chat template.
    """

    def __init__(self, tokenizer: Any, dialect: str | Dialect = "hermes") -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(f"{tokenizer.name_or_path or 'the tokenizer'} has no chat template; set one")
        self.tokenizer = tokenizer
        self.dialect = get_dialect(dialect) if isinstance(dialect, str) else dialect

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a turn."""
        config = getattr(self.tokenizer, "eos_token_id", None)
        tail = self._suffix((user("q"), assistant("a")), (user("q"), assistant("a"), user("q")))
        first = tail[:1] if tail and tail[0] in self._special_ids else ()
        return frozenset({*first, *(() if config is None else (config,))})

    @cached_property
    def pad_id(self) -> int:
        """An id to pad with; never attended to."""
        pad = self.tokenizer.pad_token_id
        return int(pad if pad is not None else min(self.eos_ids))

    @cached_property
    def native_tools(self) -> bool:
        """The template has a tool section."""
        return _PROBE.name in self._template((user("q"),), (_PROBE,))

    def prompt_ids(self, messages: Conversation, tools: Sequence[ToolSpec] = ()) -> tuple[int, ...]:
        """The whole conversation and the opening of the assistant's next turn."""
        return self._encode(self._adapt(messages, tools), tools, generation_prompt=True)

    def extend(self, messages: Conversation, *, ended: bool) -> tuple[int, ...]:
        """The ids that follow a sampled assistant turn: its missing end (unless `ended`), the new messages
        and the opening of the next turn.

        They are the difference of two small renderings by the template itself, so the cost is that of the
        new messages, and history is never tokenised again.
        """
        # The call ids of the new results, so that templates which look their call up find it.
        calls = tuple(ToolCall(m.name or "tool", {}, m.tool_call_id or "") for m in messages if m.role == "tool")
        opening = (user("q"), assistant("a" if not calls else None, *calls))
        tail = self._suffix(opening, (*opening, *messages), generation_prompt=True)
        return tail[1:] if ended and tail[:1] and tail[0] in self.eos_ids else tail

    @cached_property
    def rewrites_history(self) -> bool:
        """The template changes earlier assistant turns once more messages follow (strips their thinking)."""
        turn = (user("q"), replace(assistant("<think>\nt\n</think>\n\na"), reasoning=None))
        before = self._template(turn, ())
        after = self._template((*turn, user("q")), ())
        return not after.startswith(before.rstrip("\n"))

    def parse(self, token_ids: Sequence[int]) -> Message:
        """The assistant message that sampled ids stand for: ends of turn stripped, the rest byte for byte."""
        ids = list(token_ids)
        while ids and ids[-1] in self.eos_ids:
            ids.pop()
        return self.dialect.parse(self.decode(ids))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Ids as text, special tokens shown."""
        text: str = self.tokenizer.decode(list(token_ids), clean_up_tokenization_spaces=False)
        return text

    # ---- rendering

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(self.tokenizer.all_special_ids)

    @cached_property
    def _look_alikes(self) -> re.Pattern[str]:
        specials = {*self.tokenizer.all_special_tokens, *map(str, self.tokenizer.added_tokens_decoder.values())}
        return re.compile("|".join(map(re.escape, sorted(specials, key=len, reverse=True))) or r"(?!)")

    def _adapt(self, messages: Conversation, tools: Sequence[ToolSpec]) -> Conversation:
        """The conversation as this template can take it."""
        if self.native_tools:
            return messages
        plain = tuple(self._plain(message) for message in messages)
        if not tools:
            return plain
        section = self.dialect.tools_prompt(tools)
        if plain and plain[0].role == "system":
            return (system(f"{plain[0].text}\n\n{section}"), *plain[1:])
        return (system(section), *plain)

    def _plain(self, message: Message) -> Message:
        if message.role == "tool":
            return user(self.dialect.render_result(message.text))
        if message.tool_calls:
            calls = [self.dialect.render_call(call) for call in message.tool_calls]
            return assistant("\n".join([message.text, *calls] if message.text else calls))
        return message

    def _suffix(self, held: Conversation, whole: Conversation, *, generation_prompt: bool = False) -> tuple[int, ...]:
        """The ids of `whole` that follow the content of `held`'s last message."""
        before = self._encode(self._adapt(held, ()), (), generation_prompt=False)
        after = self._encode(self._adapt(whole, ()), (), generation_prompt=generation_prompt)
        # Templates write the same end of turn in both; a stripped final newline may be missing in `before`.
        cut = len(before)
        while cut and before[:cut] != after[:cut]:
            cut -= 1
        # Back to the end-of-turn token, so that the suffix starts with it.
        marks = [i for i in range(cut) if after[i] in self._special_ids]
        return after[marks[-1] if marks else cut :]

    def _encode(self, messages: Conversation, tools: Sequence[ToolSpec], *, generation_prompt: bool) -> tuple[int, ...]:
        shielded, found = self._shield(messages)
        text = self._template(shielded, tools, generation_prompt=generation_prompt)
        return self._ids(text, found)

    def _shield(self, messages: Conversation) -> tuple[Conversation, dict[str, str]]:
        """Look-alikes of special tokens in content, replaced by marks that no text holds."""
        found: dict[str, str] = {}
        joined = "".join(message.text for message in messages)

        def mark(match: re.Match[str]) -> str:
            key = f"\uf8ff{len(found)}\uf8fe"
            while key in joined:
                key = f"\uf8ff{key}"
            found[key] = match[0]
            return key

        if not self._look_alikes.search(joined) and not any(message.tool_calls for message in messages):
            return messages, found
        return tuple(_map_text(message, lambda text: self._look_alikes.sub(mark, text)) for message in messages), found

    def _ids(self, text: str, marks: dict[str, str]) -> tuple[int, ...]:
        ids: list[int] = []
        if not marks:
            ids = self.tokenizer.encode(text, add_special_tokens=False)
            return tuple(ids)
        pieces = re.split("(" + "|".join(map(re.escape, sorted(marks, key=len, reverse=True))) + ")", text)
        for piece in pieces:
            plain = piece in marks
            body = marks.get(piece, piece)
            ids += self.tokenizer.encode(body, add_special_tokens=False, split_special_tokens=plain)
        return tuple(ids)

    def _template(self, messages: Conversation, tools: Sequence[ToolSpec], *, generation_prompt: bool = False) -> str:
        text: str = self.tokenizer.apply_chat_template(
            [_template_dict(message) for message in messages],
            tools=[spec.to_openai() for spec in tools] or None,
            tokenize=False,
            add_generation_prompt=generation_prompt,
        )
        return text


def _map_text(message: Message, change: Any) -> Message:
    content = change(message.content) if isinstance(message.content, str) else message.content
    calls = tuple(
        replace(call, arguments={key: change(v) if isinstance(v, str) else v for key, v in call.arguments.items()})
        if not isinstance(call.arguments, str)
        else replace(call, arguments=change(call.arguments))
        for call in message.tool_calls
    )
    return replace(message, content=content, tool_calls=calls)


def _template_dict(message: Message) -> dict[str, Any]:
    """Templates want text and argument objects where the OpenAI form has null and JSON text."""
    data = to_openai(message)
    data["content"] = data["content"] if data["content"] is not None else ""
    for call, source in zip(data.get("tool_calls", ()), message.tool_calls, strict=True):
        call["function"]["arguments"] = (
            source.arguments if isinstance(source.arguments, str) else dict(source.arguments)
        )
    return data
