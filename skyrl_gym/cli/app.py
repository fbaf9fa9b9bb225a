"""The application: the options of `skyrl` itself, and its verbs."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.markup import escape

from skyrl_gym.cli import (
    check_model,
    compare,
    doctor,
    export,
    gateway,
    plan,
    play,
    replay,
    score,
    serve_env,
    show,
    tasks,
    train,
    validate,
    view,
)
from skyrl_gym.cli import eval as eval_
from skyrl_gym.cli import list as list_
from skyrl_gym.cli.boundary import Verb, one_line, say_error
from skyrl_gym.registration import register_file

__all__ = ["app", "main"]

# Click's class, by a way that holds whether typer brings click along or not.
_UsageError: Any = typer.BadParameter.__mro__[1]

app = typer.Typer(
    name="skyrl",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"skyrl {importlib.metadata.version('skyrl-suite')}")
        raise typer.Exit


def _examples(commands: str) -> str:
    return "\n\n".join(["[bold]Examples[/]", *(escape(line) for line in commands.strip().splitlines())])


@app.callback()
def skyrl(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    registry: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", envvar="SKYRL_REGISTRY", help="A registry file with environments of your own."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Environments for LLM agents: play, evaluate, train.

    The options below may also stand behind a command and its arguments.
    """
    with one_line(debug):
        for file in registry or ():
            register_file(file)


for _name, _module in {
    "list": list_,
    "show": show,
    "play": play,
    "eval": eval_,
    "train": train,
    "plan": plan,
    "view": view,
    "compare": compare,
    "score": score,
    "replay": replay,
    "validate": validate,
    "check-model": check_model,
    "export": export,
    "serve-env": serve_env,
    "gateway": gateway,
    "doctor": doctor,
}.items():
    app.command(_name, cls=Verb, epilog=_examples(_module.EXAMPLES))(_module.run)

_tasks = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Make tasks of your own.")
_tasks.command("make-swe", cls=Verb, epilog=_examples(tasks.EXAMPLES))(tasks.make_swe)
app.add_typer(_tasks, name="tasks")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs a command line, the process's own by default, and exits."""
    words = _own_options_first(sys.argv[1:] if arguments is None else arguments)
    try:
        status = app(words, standalone_mode=False)
    except _UsageError as error:
        path = error.ctx.command_path if error.ctx else "skyrl"
        say_error(f"{error.format_message()} See: {path} --help")
        status = 2
    except BrokenPipeError:
        sys.stderr.close()  # nobody reads any more: no second complaint at exit
        status = 1
    sys.exit(status)


def _own_options_first(words: Sequence[str]) -> list[str]:
    """Moves `--debug` and `--registry FILE` in front of the verb, where typer wants them."""
    front: list[str] = []
    rest: list[str] = []
    for position, word in enumerate(words):
        own = word in ("--debug", "--registry") or word.startswith("--registry=")
        value = position > 0 and words[position - 1] == "--registry"
        (front if own or value else rest).append(word)
    return front + rest
