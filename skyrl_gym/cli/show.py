"""`skyrl show ENV`: one environment from outside."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from skyrl_gym.cli.needs import missing_needs
from skyrl_gym.cli.settings import SetOption, parse_settings
from skyrl_gym.env import TextEnv
from skyrl_gym.errors import SkyRLError
from skyrl_gym.messages import format_transcript
from skyrl_gym.registration import env_class, make_env, registered, settings_of
from skyrl_gym.tools.tool import argument_texts

EXAMPLES = """
skyrl show skyrl/memory-v0
skyrl show skyrl/swe-v0 --set split=test
"""
SETUP_S = 20.0
SHOWN_CHARACTERS = 2_000


def run(
    env: Annotated[str, typer.Argument(metavar="ENV", help="An id of `skyrl list`.")],
    settings: SetOption = None,
) -> None:
    """An environment's tools, splits, settings and a first observation."""
    console = Console(highlight=False)
    kwargs = parse_settings(settings)
    made = make_env(env, **kwargs)
    entry = next((entry for entry in registered() if entry.id == env), None)
    missing = missing_needs(entry.needs if entry else ())
    opening = f"Not shown: {'; '.join(missing)}" if missing else asyncio.run(_open(made))
    console.print(f"[bold]{env}[/]  {escape(entry.summary) if entry else ''}")
    console.print(_facts(env, made, kwargs, ", ".join(entry.needs if entry else ()) or "nothing"))
    console.print("\n[bold]Tools[/]")
    for spec in made.tool_specs:
        console.print(spec.signature(), markup=False, style="cyan")
        console.print(_indented(spec.description), markup=False)
    console.print("\n[bold]Settings[/]  (--set key=value)")
    console.print(_settings_table(env, entry.kwargs if entry else {}))
    console.print("\n[bold]First observation[/]")
    console.print(opening, markup=False)


def _facts(env_id: str, made: TextEnv, kwargs: dict[str, Any], needs: str) -> Table:
    table = Table.grid(padding=(0, 2))
    splits = (f"{split} ({_count(env_id, kwargs | {'split': split})})" for split in made.splits)
    table.add_row("tasks", escape(", ".join(splits)))
    table.add_row("turns", f"at most {made.max_turns}")
    table.add_row("needs", needs)
    return table


def _count(env_id: str, kwargs: dict[str, Any]) -> str:
    try:
        return f"{len(make_env(env_id, **kwargs).tasks):,}"
    except SkyRLError as error:
        return f"not to be had: {error}"


def _settings_table(env_id: str, registered_values: Any) -> Table:
    texts = dict(_texts(env_class(env_id)))
    table = Table.grid(padding=(0, 2))
    for name, parameter in settings_of(env_id).items():
        default = registered_values.get(name, parameter.default)
        shown = "(required)" if default is inspect.Parameter.empty else repr(default)
        table.add_row(name, escape(shown), escape(texts.get(name, "")))
    return table


def _texts(cls: type) -> Iterator[tuple[str, str]]:
    for base in reversed(cls.__mro__):
        yield from argument_texts(base).items()


async def _open(env: TextEnv) -> str:
    try:
        async with asyncio.timeout(SETUP_S):
            messages, info = await env.areset(seed=0)
        text = format_transcript(messages)
        cut = f"\n[... {len(text) - SHOWN_CHARACTERS} characters more]" if len(text) > SHOWN_CHARACTERS else ""
        return f"task {info['task_id']}\n\n{text[:SHOWN_CHARACTERS]}{cut}"
    except TimeoutError:
        return f"Not shown: its setup takes longer than {SETUP_S:g} s."
    except SkyRLError as error:
        return f"Not shown: {error}"
    finally:
        await env.aclose()


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
