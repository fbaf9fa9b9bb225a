"""Where a repository is, and how it is looked at: by scripts that run there. Nothing here opens a file of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from skyrl_gym.errors import ToolError

__all__ = ["IGNORED", "Place", "Ran", "Scripts", "as_names"]

COMMAND_S = 30.0
IGNORED = (".git", ".hg", ".svn", "node_modules", "__pycache__", ".tox", ".venv", ".mypy_cache", ".pytest_cache")
# A container's own start-up file is no business of these scripts.
_ENV = {"BASH_ENV": "/dev/null", "LC_ALL": "C"}


class Ran(Protocol):
    """What a command did: its output, and its exit status or None if it was stopped."""

    @property
    def output(self) -> bytes: ...  # noqa: D102 - said above

    @property
    def code(self) -> int | None: ...  # noqa: D102


class Place(Protocol):
    """Where commands are run; a `Sandbox` is one."""

    async def inspect(
        self,
        command: list[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        max_bytes: int = 1_048_576,
    ) -> Ran:
        """Runs a command that only looks at files."""
        ...

    def layer(self, target: str) -> str | None:
        """Where `inspect` sees all that was written below a folder, and nothing else; None if it is not kept apart."""
        ...


@dataclass(frozen=True)
class Scripts:
    """Runs scripts of bash that look at a folder, which they know as `$0`. Each has a deadline."""

    place: Place
    root: str

    async def run(self, script: str, stdin: bytes = b"", *arguments: str, max_bytes: int) -> bytes:
        """The output of a script, as far as the bound lets it; `arguments` are `$1` and so on.

        Raises:
            ToolError: it took too long, or could not be started.
        """
        command = ["bash", "-c", f"exec 2>/dev/null; {script}", self.root, *arguments]
        try:
            ran = await self.place.inspect(command, timeout_s=COMMAND_S, stdin=stdin, env=_ENV, max_bytes=max_bytes)
        except OSError as error:
            raise ToolError(f"{self.root} could not be read: {error}.") from error
        if ran.code is None:
            raise ToolError(f"{self.root} could not be read within {COMMAND_S:g} s; use bash.")
        return ran.output

    def layer(self) -> str | None:
        """Where all that was written to the folder is seen, if that is kept apart."""
        return self.place.layer(self.root)


def as_names(paths: Iterable[str]) -> bytes:
    """Relative paths, as `xargs -0` and `tar --null` read them."""
    named = (path if path == "." else f"./{path}" for path in paths)
    return b"".join(f"{name}\0".encode(errors="surrogateescape") for name in named)
