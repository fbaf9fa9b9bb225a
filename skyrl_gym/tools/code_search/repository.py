"""A repository where the agent works, seen through scripts that run there.

Links are never followed, what is not a regular file is never read, and every script has a deadline and a bound.
"""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import NamedTuple

from skyrl_gym.tools.code_search.listing import MAX_LISTING, Listing, look
from skyrl_gym.tools.code_search.parsers import MAX_FILE_BYTES
from skyrl_gym.tools.code_search.place import IGNORED, Place, Scripts, as_names

__all__ = ["Match", "Repository"]

MAX_TOTAL_BYTES = 1 << 27
MAX_MATCHES_BYTES = 400_000
MAX_LINE = 300


class Match(NamedTuple):
    """A line with the text that was looked for."""

    path: str
    line: int
    text: str


class Repository:
    """The source files below a folder. Paths are relative to it."""

    def __init__(self, place: Place, root: str) -> None:
        self._scripts = Scripts(place, root)

    async def listing(self, known: Listing | None = None) -> Listing:
        """What is there now; what was known, itself, if nothing has changed since.

        Raises:
            ToolError: the folder can't be listed.
        """
        return await look(self._scripts, known)

    async def digests(self, paths: Iterable[str]) -> dict[str, str]:
        """The SHA-256 of files, as the place says; those that can't be read are missing."""
        output = await self._scripts.run(
            'cd "$0" && xargs -0 -r sha256sum -z --', as_names(paths), max_bytes=MAX_LISTING
        )
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
        data = await self._scripts.run(command, as_names(paths), max_bytes=2 * MAX_TOTAL_BYTES)
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
        output = await self._scripts.run(search, b"", text, path, max_bytes=2 * MAX_MATCHES_BYTES)
        return [match for line in output.split(b"\n") if (match := _match(line)) is not None]


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
