"""Gymnasium spaces of an LLM environment: tool calls as actions, conversations as observations."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import gymnasium as gym
import jsonschema

from skyrl_gym.errors import ConfigError, MessageError
from skyrl_gym.messages import Conversation, Message, ToolCall, assistant, from_openai, to_openai, user
from skyrl_gym.tools import ToolSpec

__all__ = ["Action", "ConversationSpace", "ToolSpace", "as_message"]

Action: TypeAlias = ToolCall | Sequence[ToolCall] | Message | str
"""What `step` takes: a call, several, an assistant message, or the model's raw text."""


def as_message(action: Action, parse: Callable[[str], Message]) -> Message:
    """The assistant message that an action stands for; `parse` reads raw text.

    Raises:
        MessageError: this is no action.
    """
    match action:
        case str():
            return parse(action)
        case ToolCall():
            return assistant(None, action)
        case Message(role="assistant"):
            return action
        case Sequence() if action and all(isinstance(call, ToolCall) for call in action):
            return assistant(None, *action)
    raise MessageError(
        f"an action is a ToolCall, a list of them, an assistant Message or the model's text; got {action!r:.200}"
    )


class ToolSpace(gym.Space[ToolCall]):
    """All valid calls of some tools.

    Built from names and JSON schemas alone, so it pickles, compares and round-trips through JSON without
    the functions behind them.
    """

    def __init__(self, tools: Iterable[ToolSpec], seed: int | None = None) -> None:
        self.tools = {spec.name: spec for spec in tools}
        if not self.tools:
            raise ConfigError("a ToolSpace needs at least one tool")
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Calls are not arrays."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> ToolCall:
        """A valid call: a tool drawn uniformly, its arguments by schema.

        Raises:
            ConfigError: a mask or probability was given; calls have no such weights.
        """
        if mask is not None or probability is not None:
            raise ConfigError("ToolSpace.sample takes no mask or probability")
        rng = random.Random(int(self.np_random.integers(2**63)))
        spec = self.tools[rng.choice(sorted(self.tools))]
        return ToolCall(spec.name, _draw(rng, spec.parameters, spec.parameters.get("$defs", {})))

    def contains(self, x: Any) -> bool:
        """Whether `x` is a call of a known tool whose arguments fit its schema."""
        if not isinstance(x, ToolCall) or x.name not in self.tools or isinstance(x.arguments, str):
            return False
        return jsonschema.Draft202012Validator(self.tools[x.name].parameters).is_valid(dict(x.arguments))

    def to_jsonable(self, sample_n: Iterable[ToolCall]) -> list[Any]:
        """Calls as JSON values."""
        return [{"name": c.name, "arguments": c.arguments, "id": c.id} for c in sample_n]

    def from_jsonable(self, sample_n: list[Any]) -> list[ToolCall]:
        """The calls back."""
        return [ToolCall(c["name"], c["arguments"], c["id"]) for c in sample_n]

    def to_json(self) -> str:
        """The space itself as JSON."""
        return json.dumps([[s.name, s.description, dict(s.parameters)] for s in self.tools.values()])

    @classmethod
    def from_json(cls, text: str) -> ToolSpace:
        """The space back from `to_json`."""
        return cls(ToolSpec(*entry) for entry in json.loads(text))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToolSpace) and self.tools == other.tools

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ToolSpace({', '.join(spec.signature() for spec in self.tools.values())})"


class ConversationSpace(gym.Space[Conversation]):
    """Every sequence of messages: what the policy should see next, from the first message on."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Messages are not arrays."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> Conversation:
        """A conversation of one short user message."""
        rng = random.Random(int(self.np_random.integers(2**63)))
        return (user(_text(rng, 0, 32)),)

    def contains(self, x: Any) -> bool:
        """Whether `x` is a tuple of messages."""
        return isinstance(x, tuple) and all(isinstance(item, Message) for item in x)

    def to_jsonable(self, sample_n: Iterable[Conversation]) -> list[Any]:
        """Conversations as lists of OpenAI dicts."""
        return [[to_openai(message) for message in conversation] for conversation in sample_n]

    def from_jsonable(self, sample_n: list[Any]) -> list[Conversation]:
        """The conversations back."""
        return [tuple(from_openai(message) for message in conversation) for conversation in sample_n]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConversationSpace)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "ConversationSpace()"


_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _-./\n\"'{}é漢🙂"
_WIDE = 1_000  # how far an unbounded number is drawn from zero


def _draw(rng: random.Random, schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Any:
    """A value that a JSON schema of the kind pydantic writes accepts."""
    if "$ref" in schema:
        return _draw(rng, defs[schema["$ref"].rsplit("/", 1)[-1]], defs)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return _draw(rng, rng.choice(schema[union]), defs)
    if "allOf" in schema:
        return _draw(rng, {k: v for part in schema["allOf"] for k, v in part.items()}, defs)
    kind = str(schema.get("type"))
    if kind not in _DRAW:
        raise ConfigError(
            f"can't sample from this JSON schema: {dict(schema)!r:.300}; supported types: {', '.join(_DRAW)}"
        )
    return _DRAW[kind](rng, schema, defs)


def _draw_object(rng: random.Random, schema: Mapping[str, Any], defs: Mapping[str, Any]) -> dict[str, Any]:
    required = schema.get("required", ())
    chosen = [n for n in schema.get("properties", {}) if n in required or rng.random() < 0.5]
    values = {name: _draw(rng, schema["properties"][name], defs) for name in chosen}
    if isinstance(extra := schema.get("additionalProperties"), Mapping):
        values |= {_text(rng, 1, 8): _draw(rng, extra, defs) for _ in range(rng.randint(0, 2))}
    return values


def _draw_array(rng: random.Random, schema: Mapping[str, Any], defs: Mapping[str, Any]) -> list[Any]:
    prefix = [_draw(rng, item, defs) for item in schema.get("prefixItems", ())]
    low = schema.get("minItems", 0)
    high = schema.get("maxItems", max(low, len(prefix)) + 3)
    if schema.get("items") is False or "items" not in schema:
        return prefix
    items: list[Any] = []
    for _ in range(rng.randint(low, high) - len(prefix)):
        items.append(_draw(rng, schema["items"], defs))
    if schema.get("uniqueItems"):
        items = [value for i, value in enumerate(items) if value not in items[:i]]
    return prefix + items


def _draw_string(rng: random.Random, schema: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    low = schema.get("minLength", 0)
    high = schema.get("maxLength", low + 24)
    if "pattern" not in schema:
        return _text(rng, low, high)
    import rstr

    generator = rstr.Rstr(rng)
    for _ in range(1_000):
        value: str = generator.xeger(schema["pattern"])
        if low <= len(value) <= schema.get("maxLength", len(value)):
            return value
    raise ConfigError(f"found no text for pattern {schema['pattern']!r} of length {low} to {high}")


def _draw_integer(rng: random.Random, schema: Mapping[str, Any], defs: Mapping[str, Any]) -> int:
    step = int(schema.get("multipleOf", 1))
    low = schema.get("minimum", schema["exclusiveMinimum"] + 1 if "exclusiveMinimum" in schema else None)
    high = schema.get("maximum", schema["exclusiveMaximum"] - 1 if "exclusiveMaximum" in schema else None)
    low = low if low is not None else (high if high is not None else 0) - _WIDE * step
    high = high if high is not None else low + 2 * _WIDE * step
    return step * rng.randint(-(-int(low) // step), int(high) // step)


def _draw_number(rng: random.Random, schema: Mapping[str, Any], defs: Mapping[str, Any]) -> float:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    low = low if low is not None else (high if high is not None else 0) - _WIDE
    high = high if high is not None else low + 2 * _WIDE
    # Kept off the ends, which may be exclusive.
    return float(low + (high - low) * rng.uniform(0.001, 0.999))


def _text(rng: random.Random, low: int, high: int) -> str:
    return "".join(rng.choices(_ALPHABET, k=rng.randint(low, high)))


_DRAW: Mapping[str, Callable[[random.Random, Mapping[str, Any], Mapping[str, Any]], Any]] = {
    "object": _draw_object,
    "array": _draw_array,
    "string": _draw_string,
    "integer": _draw_integer,
    "number": _draw_number,
    "boolean": lambda rng, schema, defs: rng.random() < 0.5,
    "null": lambda rng, schema, defs: None,
}
