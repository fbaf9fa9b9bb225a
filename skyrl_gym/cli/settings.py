"""`--set key=value`: settings from the command line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer
import yaml

from skyrl_gym.errors import ConfigError

__all__ = ["SetOption", "parse_settings", "parse_value"]

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of the environment; `skyrl show ENV` lists them."),
]


def parse_settings(pairs: Iterable[str] | None) -> dict[str, Any]:
    """Settings from `key=value` words; a value is JSON or YAML, anything else is text.

    Raises:
        ConfigError: a word has no `=`, or a key stands twice.
    """
    settings: dict[str, Any] = {}
    for pair in pairs or ():
        key, equals, text = pair.partition("=")
        if not (key and equals):
            raise ConfigError(f"--set takes key=value; got {pair!r}")
        if key in settings:
            raise ConfigError(f"--set gives {key!r} twice")
        settings[key] = parse_value(text)
    return settings


def parse_value(text: str) -> Any:
    """A value as it would be read from JSON (1e-5 is a number) or else YAML; text that is neither stays text."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text
