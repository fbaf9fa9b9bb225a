"""`@tool`: the schema of a tool comes from its signature and docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo

from skyrl_gym.errors import ConfigError, ToolError

__all__ = ["Effect", "Tool", "ToolArgumentError", "ToolSpec", "argument_texts", "tool", "tools_of"]

Effect: TypeAlias = Literal["reads", "writes", "context"]
DEFAULT_TIMEOUT_S = 60.0
DEFAULT_MAX_BYTES = 16_384


class ToolArgumentError(ToolError):
    """The arguments of a call don't fit; the text is for the model."""


@dataclass(frozen=True)
class ToolSpec:
    """What a model needs to know of a tool. `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def to_openai(self) -> dict[str, Any]:
        """The OpenAI function form."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    def signature(self) -> str:
        """One line: name(argument: type, optional: type = default)."""
        required = self.parameters.get("required", ())
        parts = [
            f"{name}: {_type_name(schema)}" + ("" if name in required else f" = {schema.get('default')!r}")
            for name, schema in self.parameters.get("properties", {}).items()
        ]
        return f"{self.name}({', '.join(parts)})"


@dataclass(frozen=True)
class Tool:
    """A callable with a schema, a deadline and an output cap.

    `timeout_s` bounds one call; `max_bytes` caps the text of its result, with the cut shown; `effect` says
    whether it `reads` or `writes` the world or replaces the `context`: only reads may run side by side.
    """

    spec: ToolSpec
    fn: Callable[..., Any]
    model: type[BaseModel]
    timeout_s: float = DEFAULT_TIMEOUT_S
    max_bytes: int = DEFAULT_MAX_BYTES
    effect: Effect = "writes"

    @property
    def name(self) -> str:
        """The name that a model calls it by."""
        return self.spec.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function itself, as if it had not been decorated."""
        return self.fn(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Tool:
        """On an instance, a tool declared as a method is bound to it."""
        return self if instance is None else replace(self, fn=self.fn.__get__(instance, owner))

    def parse(self, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
        """Keyword arguments for `fn`, validated and converted.

        Raises:
            ToolArgumentError: they don't fit; the text says what is wrong and what is valid.
        """
        if isinstance(arguments, str):
            raise ToolArgumentError(
                f"The arguments of {self.name} are not a JSON object: {arguments[:200]!r}. "
                f"Expected: {self.spec.signature()}"
            )
        try:
            return vars(self.model.model_validate(dict(arguments)))
        except ValidationError as error:
            raise ToolArgumentError(self._explain(error)) from None

    def _explain(self, error: ValidationError) -> str:
        faults = [f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in error.errors()]
        return f"Invalid arguments for {self.name}: {'; '.join(faults)}. Expected: {self.spec.signature()}"


@overload
def tool(fn: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    max_bytes: int = DEFAULT_MAX_BYTES,
    effect: Effect = "writes",
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    max_bytes: int = DEFAULT_MAX_BYTES,
    effect: Effect = "writes",
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Makes a tool of a function or method, sync or async.

    Types come from the annotations (`Annotated[int, Field(ge=1)]`, `Literal`, `Optional`, pydantic models),
    the description from the docstring's first part, those of the arguments from its `Args:` section.

    Raises:
        ConfigError: a parameter has no annotation, or the function no docstring.
    """

    def decorate(function: Callable[..., Any]) -> Tool:
        model = _argument_model(function, name or function.__name__)
        spec = ToolSpec(name or function.__name__, _summary(function), _schema(model))
        return Tool(spec, function, model, timeout_s, max_bytes, effect)

    return decorate if fn is None else decorate(fn)


def tools_of(instance: object) -> tuple[Tool, ...]:
    """The tools declared on an object's class, bound to it, in order of definition, base classes first."""
    names: dict[str, None] = {}
    for cls in reversed(type(instance).__mro__):
        names.update(dict.fromkeys(key for key, value in vars(cls).items() if isinstance(value, Tool)))
    found = (getattr(instance, name) for name in names)
    return tuple(item for item in found if isinstance(item, Tool))


def _argument_model(function: Callable[..., Any], tool_name: str) -> type[BaseModel]:
    hints = get_type_hints(function, include_extras=True)
    texts = argument_texts(function)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or parameter.name not in hints:
            raise ConfigError(f"tool {tool_name}: parameter {parameter.name!r} needs a name and a type annotation")
        default = ... if parameter.default is parameter.empty else parameter.default
        info = default if isinstance(default, FieldInfo) else Field(default, description=texts.get(parameter.name))
        fields[parameter.name] = (hints[parameter.name], info)
    return create_model(tool_name, __config__=ConfigDict(extra="forbid"), **fields)


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema()
    schema.setdefault("properties", {})
    return {key: _without_titles(value) for key, value in schema.items() if key != "title"}


def _without_titles(node: Any) -> Any:
    """Pydantic's generated titles cost prompt tokens and say nothing; a *property* named title stays."""
    if isinstance(node, list):
        return [_without_titles(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: _without_titles(value) for key, value in node.items() if not (key == "title" and isinstance(value, str))
    }


def _summary(function: Callable[..., Any]) -> str:
    text = inspect.getdoc(function)
    if not text:
        raise ConfigError(f"tool {function.__name__} needs a docstring: it is what the model reads")
    return re.split(r"\n\s*(?:Args|Arguments|Returns|Raises):\s*\n", text, maxsplit=1)[0].strip()


def argument_texts(documented: object) -> dict[str, str]:
    """What the `Args:` section of a function's or class's docstring says of each argument."""
    doc = inspect.getdoc(documented) or ""
    section = re.search(r"^Args:\s*\n((?:[ \t]+.*\n?|\n)+)", doc, re.MULTILINE)
    if not section:
        return {}
    entries = re.findall(r"^ {4}(\w+)(?: \([^)]*\))?: (.*(?:\n {5,}.*)*)", section[1], re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text).strip() for name, text in entries}


def _type_name(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(repr(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(_type_name(option) for option in schema["anyOf"])
    if schema.get("type") == "array":
        return f"array of {_type_name(schema.get('items', {}))}"
    return str(schema.get("type", schema.get("const", schema.get("$ref", "any").rsplit("/", 1)[-1])))
