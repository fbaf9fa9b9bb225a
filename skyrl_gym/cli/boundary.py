"""Where exceptions become one line and an exit status.

0 it worked; 1 the run failed, or a bug; 2 what came in is wrong; 130 interrupted.
"""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from skyrl_gym.errors import RunAborted, SkyRLError, UserError

__all__ = ["Verb", "keeping", "one_line", "say_error"]


class Verb(TyperCommand):
    """A command whose errors end as one line; `skyrl --debug` shows the traceback before it."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        with one_line(debug=bool(ctx.find_root().params.get("debug"))):
            return super().invoke(ctx)


@contextmanager
def one_line(debug: bool) -> Iterator[None]:
    """Turns whatever is raised inside into one line on stderr and `typer.Exit`."""
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except (KeyboardInterrupt, Exception) as error:
        if isinstance(error, BrokenPipeError):
            raise
        if debug:
            traceback.print_exception(error)
        status, text = _explain(error)
        say_error("; ".join([text, *getattr(error, "__notes__", ())]))
        raise typer.Exit(status) from None


@contextmanager
def keeping(folder: Path, hint: str = "") -> Iterator[None]:
    """Adds to whatever is raised inside where finished work lies, if there is any, and a hint."""
    try:
        yield
    except BaseException as error:
        if folder.is_dir() and any(folder.iterdir()):
            error.add_note(f"finished work is kept in {folder}{hint}")
        raise


def say_error(text: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"skyrl: {' '.join(text.split())}\n")


def _explain(error: BaseException) -> tuple[int, str]:
    match error:
        case KeyboardInterrupt():
            return 130, "interrupted"
        case UserError():
            return 2, str(error)
        case RunAborted():
            return 1, f"{error} (again with --debug: the traceback)"
        case SkyRLError():
            return 1, str(error) or type(error).__name__
        case OSError(errno=errno.ENOSPC):
            return 1, f"the disk is full{_where(error)}: make room and run the same command again"
        case OSError():
            return 1, f"{error.strerror or error}{_where(error)}"
    return 1, f"a bug: {type(error).__name__}: {error} (again with --debug: the traceback)"


def _where(error: OSError) -> str:
    return f" ({error.filename})" if error.filename else ""
