"""Messages between an environment and a policy: frozen values with an exact OpenAI-dict form."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

from skyrl_gym.errors import MessageError

__all__ = [
    "Content",
    "Conversation",
    "ImagePart",
    "Message",
    "Part",
    "Role",
    "TextPart",
    "ToolCall",
    "add_text",
    "assistant",
    "decode_arguments",
    "format_transcript",
    "from_openai",
    "system",
    "to_openai",
    "tool_result",
    "user",
]

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
_ROLES: tuple[str, ...] = get_args(Role)


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of text in a message of several parts."""

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image: `url` is an http(s) address or a `data:` URL."""

    url: str

    @classmethod
    def from_bytes(cls, data: bytes, media_type: str = "image/png") -> ImagePart:
        """An image held in the message itself."""
        return cls(f"data:{media_type};base64,{base64.b64encode(data).decode()}")


Part: TypeAlias = TextPart | ImagePart
Content: TypeAlias = str | tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A request to run one tool.

    `arguments` is the decoded JSON object; where the model wrote something that is no JSON object, it is
    that text as it stands, so that the mistake can be shown back to the model.
    """

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str = ""

    @property
    def well_formed(self) -> bool:
        """The arguments are a JSON object (they may still not fit the tool's schema)."""
        return not isinstance(self.arguments, str)

    def arguments_json(self) -> str:
        """The arguments as JSON text; malformed ones as they came."""
        if isinstance(self.arguments, str):
            return self.arguments
        return json.dumps(dict(self.arguments), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. Content is text, parts, or None (an assistant that only calls)."""

    role: Role
    content: Content | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None

    def __post_init__(self) -> None:
        if self.role not in _ROLES:
            raise MessageError(f"a message's role is one of {', '.join(_ROLES)}; got {self.role!r}")
        if self.tool_calls and self.role != "assistant":
            raise MessageError(f"only an assistant message has tool calls; got them on role {self.role!r}")
        if self.role == "tool" and self.tool_call_id is None:
            raise MessageError("a tool message needs the tool_call_id of the call that it answers")

    @property
    def text(self) -> str:
        """The text alone: parts joined, images left out, None as ''."""
        if isinstance(self.content, tuple):
            return "".join(part.text for part in self.content if isinstance(part, TextPart))
        return self.content or ""


Conversation: TypeAlias = tuple[Message, ...]


def system(content: Content) -> Message:
    """A system message."""
    return Message("system", content)


def user(content: Content) -> Message:
    """A user message."""
    return Message("user", content)


def assistant(content: Content | None = None, *calls: ToolCall) -> Message:
    """An assistant message, with the calls it makes."""
    return Message("assistant", content, tool_calls=calls)


def tool_result(call: ToolCall, content: Content) -> Message:
    """The answer to one tool call."""
    return Message("tool", content, tool_call_id=call.id, name=call.name)


def add_text(messages: Conversation, text: str) -> Conversation:
    """The messages with text added to the last one, or in a user message after it where that holds more than text."""
    if messages and isinstance(messages[-1].content, str):
        return (*messages[:-1], replace(messages[-1], content=f"{messages[-1].content}\n\n{text}"))
    return (*messages, user(text))


def to_openai(message: Message) -> dict[str, Any]:
    """The message as an OpenAI chat dict; `from_openai` gives an equal message back."""
    out: dict[str, Any] = {"role": message.role, "content": _content_to_openai(message.content)}
    if message.reasoning is not None:
        out["reasoning_content"] = message.reasoning
    if message.tool_calls:
        out["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments_json()}}
            for c in message.tool_calls
        ]
    if message.tool_call_id is not None:
        out["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        out["name"] = message.name
    return out


def from_openai(data: Mapping[str, Any]) -> Message:
    """A message from an OpenAI chat dict.

    Raises:
        MessageError: a field is missing or of the wrong kind.
    """
    if not isinstance(data, Mapping) or "role" not in data:
        raise MessageError(f"a message is an object with a role; got {data!r:.200}")
    calls = data.get("tool_calls") or ()
    return Message(
        role=data["role"],
        content=_content_from_openai(data.get("content")),
        tool_calls=tuple(_call_from_openai(call) for call in calls),
        tool_call_id=data.get("tool_call_id"),
        name=data.get("name"),
        reasoning=data.get("reasoning_content"),
    )


def _content_to_openai(content: Content | None) -> Any:
    if content is None or isinstance(content, str):
        return content
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, TextPart)
        else {"type": "image_url", "image_url": {"url": part.url}}
        for part in content
    ]


def _content_from_openai(content: Any) -> Content | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, Iterable) or isinstance(content, Mapping | bytes):
        raise MessageError(f"content is text, a list of parts or null; got {content!r:.200}")
    return tuple(_part_from_openai(part) for part in content)


def _part_from_openai(part: Any) -> Part:
    match part:
        case {"type": "text", "text": str(text)}:
            return TextPart(text)
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return ImagePart(url)
    raise MessageError(f"a content part has type 'text' or 'image_url'; got {part!r:.200}")


def _call_from_openai(call: Any) -> ToolCall:
    match call:
        case {"function": {"name": str(name), **rest}}:
            return ToolCall(name, decode_arguments(rest.get("arguments") or "{}"), call.get("id") or "")
    raise MessageError(f"a tool call has a function with a name; got {call!r:.200}")


def decode_arguments(arguments: Any) -> dict[str, Any] | str:
    """Call arguments as an object where they are one, else as the text that came."""
    if isinstance(arguments, Mapping):
        return dict(arguments)
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def format_transcript(messages: Conversation) -> str:
    """Messages as plain text, one block each."""
    return "\n\n".join(_block(message) for message in messages)


def _block(message: Message) -> str:
    calls = [f"-> {call.name}({call.arguments_json()})" for call in message.tool_calls]
    body = [message.text] if message.text else []
    return "\n".join([f"[{message.role}]", *body, *calls])
