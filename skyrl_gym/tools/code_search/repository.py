"""A repository where the agent works, seen through commands that run there: nothing here opens a file of it.

Links are never followed, what is not a regular file is never read, and every command has a deadline and a bound.
"""

from __future__ import annotations

import asyncio
import io
import shlex
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import NamedTuple, Protocol

from skyrl_gym.errors import ToolError
from skyrl_gym.tools.code_search.languages import LANGUAGES
from skyrl_gym.tools.code_search.parsers import MAX_FILE_BYTES

__all__ = ["Listing", "Match", "Place", "Ran", "Repository"]

COMMAND_S = 30.0
MAX_FILES = 50_000
MAX_TOTAL_BYTES = 1 << 27
MAX_LISTING = 1 << 24
MAX_MATCHES_BYTES = 400_000
MAX_LINE = 300
IGNORED = (".git", ".hg", ".svn", "node_modules", "__pycache__", ".tox", ".venv", ".mypy_cache", ".pytest_cache")
# A container's own start-up file is no business of these commands.
_ENV = {"BASH_ENV": "/dev/null", "LC_ALL": "C"}


class Ran(Protocol):
    """What a command did: its output, and its exit status or None if it was stopped."""

    @property
    def output(self) -> bytes: ...  # noqa: D102 - said above

    @property
    def code(self) -> int | None: ...  # noqa: D102


class Place(Protocol):
    """Where commands are run; a `Sandbox` is one."""

    async def exec(
        self,
        command: str | list[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        max_bytes: int = 1_048_576,
    ) -> Ran:
        """Runs a command in a process of its own."""
        ...


class Match(NamedTuple):
    """A line with the text that was looked for."""

    path: str
    line: int
    text: str


@dataclass(frozen=True)
class Listing:
    """Of every source file, and of every folder, its size, change time and number: no one can set a change time.

    A folder changes when something is made, removed or renamed in it.
    """

    files: Mapping[str, str]
    folders: Mapping[str, str]

    @cached_property
    def sources(self) -> dict[str, str]:
        """The files that are not too large to be parsed."""
        return {path: stamp for path, stamp in self.files.items() if int(stamp.split(" ")[0]) <= MAX_FILE_BYTES}


@dataclass(frozen=True)
class Repository:
    """The source files below a folder. Paths are relative to it."""

    place: Place
    root: str

    async def listing(self, known: Listing | None = None) -> Listing:
        """What is there now. What was known is looked at first: folders are read only if one of them has changed.

        Raises:
            ToolError: the folder can't be listed.
        """
        again = await self._looked_at_again(known) if known else None
        if again is not None:
            return again
        ignored = _any("-name", IGNORED)
        suffixes = "|".join(suffix[1:] for language in LANGUAGES.values() for suffix in language.suffixes)
        shown = "-printf '%y%P\\0%s %C@ %i\\0'"
        # The name first: a file that is none of ours costs no look at its data.
        what = f"-type d \\( {ignored} -prune -o {shown} \\) -o -type f -regex '.*\\.({suffixes})' {shown}"
        output = await self._run(f'cd "$0" && find . -regextype posix-extended -xdev {what}', max_bytes=MAX_LISTING)
        fields = output.decode(errors="surrogateescape").split("\0")
        if (output and not output.endswith(b"\0")) or len(fields) > 2 * MAX_FILES:
            raise ToolError(f"{self.root} has more source files than can be searched; use bash.")
        files: dict[str, str] = {}
        folders: dict[str, str] = {}
        for name, stamp in zip(fields[:-1:2], fields[1:-1:2], strict=True):
            (folders if name[0] == "d" else files)[name[1:] or "."] = _as_by_stat(stamp)
        return Listing(files, folders)

    async def _looked_at_again(self, known: Listing) -> Listing | None:
        """The same files and folders now; None if a folder has changed, or something is gone."""
        names = _names([*known.folders, *known.files])
        script = "cd \"$0\" && xargs -0 -r stat --printf '%s %.9Z %i\\n' --"
        output = await self._run(script, names, max_bytes=MAX_LISTING)
        stamps = output.decode(errors="replace").split("\n")[:-1]
        folders, files = stamps[: len(known.folders)], stamps[len(known.folders) :]
        if folders != [*known.folders.values()] or len(files) != len(known.files):
            return None
        return (
            known
            if files == [*known.files.values()]
            else Listing(dict(zip(known.files, files, strict=True)), known.folders)
        )

    async def digests(self, paths: Iterable[str]) -> dict[str, str]:
        """The SHA-256 of files, as the place says; those that can't be read are missing."""
        output = await self._run('cd "$0" && xargs -0 -r sha256sum -z --', _names(paths), max_bytes=MAX_LISTING)
        found = {}
        for entry in output.split(b"\0"):
            digest, gap, name = entry.decode(errors="surrogateescape").partition("  ")
            if gap and len(digest) == 64:
                found[name.removeprefix("./")] = digest
        return found

    async def read(self, paths: Iterable[str]) -> dict[str, bytes]:
        """The bytes of regular files; those that can't be read, and what is past the bound, are missing."""
        tar = "tar -c --no-recursion --hard-dereference --null -T - 2>/dev/null"
        command = f'cd "$0" && {tar} | head -c {MAX_TOTAL_BYTES}'
        data = await self._run(command, _names(paths), max_bytes=2 * MAX_TOTAL_BYTES)
        return await asyncio.to_thread(_unpacked, data)

    async def matches(self, text: str, path: str, *, ignore_case: bool = False) -> list[Match]:
        """The lines of text files, source or not, that hold a text; the first of them if there are very many."""
        case = "-i" if ignore_case else ""
        excluded = " ".join(f"--exclude-dir={name}" for name in IGNORED)
        globs = " ".join(f"-g '!{name}'" for name in IGNORED)
        search = (
            'cd "$0" && if command -v rg >/dev/null; '
            f'then rg --no-config --hidden --no-ignore --sort path -0 -H -n -F {case} {globs} -e "$1" -- "$2"; '
            f'else grep -r -Z -H -n -I -F {case} {excluded} -e "$1" -- "$2"; fi | head -c {MAX_MATCHES_BYTES}'
        )
        output = await self._run(search, b"", text, path, max_bytes=2 * MAX_MATCHES_BYTES)
        return [match for line in output.split(b"\n") if (match := _match(line)) is not None]

    async def _run(self, script: str, stdin: bytes = b"", *arguments: str, max_bytes: int) -> bytes:
        command = ["bash", "-c", f"{{ {script}; }} 2>/dev/null", self.root, *arguments]
        ran = await self.place.exec(command, timeout_s=COMMAND_S, stdin=stdin, env=_ENV, max_bytes=max_bytes)
        if ran.code is None:
            raise ToolError(f"{self.root} could not be read within {COMMAND_S:g} s; use bash.")
        return ran.output


def _any(test: str, values: Iterable[str]) -> str:
    return r"\( " + " -o ".join(f"{test} {shlex.quote(value)}" for value in values) + r" \)"


def _as_by_stat(stamp: str) -> str:
    """What find writes as stat does, whose change times have a digit less."""
    size, time, number = stamp.split(" ")
    return f"{size} {time[: time.index('.') + 10]} {number}"


def _names(paths: Iterable[str]) -> bytes:
    return b"".join(f"./{path}\0".encode(errors="surrogateescape") for path in paths)


def _unpacked(data: bytes) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:", errors="surrogateescape") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isreg() else None
                if content is not None and member.size <= MAX_FILE_BYTES:
                    files[str(PurePosixPath(member.name))] = content.read()
    except (tarfile.TarError, EOFError, ValueError, OverflowError):
        pass  # cut at the bound: what came before is whole
    return files


def _match(line: bytes) -> Match | None:
    path, gap, rest = line.partition(b"\0")
    number, colon, text = rest.partition(b":")
    if not gap or not colon or not number.isdigit():
        return None
    name = path.decode(errors="surrogateescape").removeprefix("./")
    return Match(name, int(number), text.decode(errors="replace")[:MAX_LINE].rstrip("\r"))
