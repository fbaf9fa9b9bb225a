"""`skyrl check-model MODEL`: can a model's tokenizer and chat template be trained on, token for token?"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from skyrl_gym.chat.conformance import Verdict, check_renderer
from skyrl_gym.policy import load_renderer

EXAMPLES = """
skyrl check-model smollm2-135m
skyrl check-model Qwen/Qwen3-8B --no-thinking
skyrl check-model ./my-model --dialect react
"""
_STYLES = {"holds": "green", "forks": "yellow", "fails": "bold red"}


def run(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A folder, a hub id, or smollm2-135m.")],
    dialect: Annotated[str, typer.Option(help="How it writes calls; auto: as its chat template shows.")] = "auto",
    thinking: Annotated[bool | None, typer.Option(help="For templates with such a switch.")] = None,
) -> None:
    """Check a model's tokenizer, chat template and dialect; the weights aren't loaded.

    Each question holds, or forks (the template rewrites history: episodes become several training sequences), or
    fails. The exit status is 1 if any fails.
    """
    renderer = load_renderer(model, dialect, thinking=thinking)
    verdicts = check_renderer(renderer)
    _show(model, renderer.dialect.name, verdicts)
    if any(verdict.outcome == "fails" for verdict in verdicts):
        raise typer.Exit(1)


def _show(model: str, dialect: str, verdicts: list[Verdict]) -> None:
    console = Console()
    table = Table("", "check", "detail", box=None, pad_edge=False, show_header=False)
    for verdict in verdicts:
        style = _STYLES[verdict.outcome]
        table.add_row(f"[{style}]{verdict.outcome}[/]", verdict.check, escape(verdict.detail))
    console.print(f"[bold]{escape(model)}[/], dialect {dialect}")
    console.print(table)
