"""Which source files a repository has: listed once, and then only where something has changed since.

Looks are compared by sizes, change times and inode numbers: nobody can set a change time. Where the place keeps what
is written in a layer of its own, a look is at that alone; else at all that was known.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property

from skyrl_gym.errors import ToolError
from skyrl_gym.tools.code_search.languages import LANGUAGES
from skyrl_gym.tools.code_search.parsers import MAX_FILE_BYTES
from skyrl_gym.tools.code_search.place import IGNORED, Scripts, as_names

__all__ = ["Listing", "look"]

MAX_FILES = 50_000
MAX_LISTING = 1 << 24
UNSETTLED_S = 0.1  # what changed so shortly before a look may change again in the same tick of the clock

_NOW = r"""printf '%s\0' "${EPOCHREALTIME:-$(date +%s.%N)}" """
_SHOWN = r"-printf '%y%p\0%s %C@ %i\0'"
_IGNORED = r"\( " + " -o ".join(f"-name {shlex.quote(name)}" for name in IGNORED) + r" \)"
_SUFFIXES = "|".join(suffix[1:] for language in LANGUAGES.values() for suffix in language.suffixes)
# The name first: a file that is none of ours costs no look at its data.
_SOURCES = rf"-type d \( {_IGNORED} -prune -o {_SHOWN} \) -o -type f -regex '.*\.({_SUFFIXES})' {_SHOWN}"
_FIND = f'depth=$1; shift; exec find "$@" $depth -regextype posix-extended -xdev {_SOURCES}'
_LIST = f'cd "$0" && {_NOW} && xargs -0 -r sh -c {shlex.quote(_FIND)} sh "$1"'
_WRITTEN = f'cd "$1" && {_NOW} && find . -regextype posix-extended {_SOURCES}'
_STAMPS = rf'cd "$0" && {_NOW} && xargs -0 -r stat --printf "%s %.9Z %i\n" --'

Stamps = Mapping[str, str]


@dataclass(frozen=True)
class Listing:
    """A stamp of every source file and of every folder, by path: it changes when they do.

    A folder changes when something is made, removed or renamed in it. `written` are the stamps of the files and folders
    that the place's layer holds, if it has one.
    """

    files: Stamps
    folders: Stamps
    written: Stamps | None = None

    @cached_property
    def sources(self) -> dict[str, str]:
        """The files that are not too large to be parsed."""
        return {path: stamp for path, stamp in self.files.items() if int(stamp.split(" ")[0]) <= MAX_FILE_BYTES}


async def look(scripts: Scripts, known: Listing | None = None) -> Listing:
    """What is there now; what was known, itself, if nothing has changed since.

    Raises:
        ToolError: the folder can't be listed.
    """
    written = await _written(scripts)  # before all else: what changes from now on, the next look sees
    changed = await _changed(scripts, known, written) if known else None
    if known is None or changed is None:
        return Listing(*await _listed(scripts, ["."]), written)
    if not changed:
        return known
    known = replace(known, written=written)
    again = sorted(path for path in changed if path in known.folders or path in known.files)
    if written is not None and all(path in known.files and path in written for path in again):
        # No folder has changed, so that there are the same files.
        return replace(known, files={**known.files, **{path: written[path] for path in again}})
    return await _listed_again(scripts, known, again)


async def _written(scripts: Scripts) -> Stamps | None:
    """The stamps of source files and folders in the layer; None if there is none, or if it holds too much."""
    layer = scripts.layer()
    if layer is None:
        return None
    entries = _entries(await scripts.run(_WRITTEN, b"", layer, max_bytes=MAX_LISTING))
    return None if entries is None else {path: stamp for path, (_, stamp) in entries.items()}


async def _changed(scripts: Scripts, known: Listing, written: Stamps | None) -> set[str] | None:
    """What is not as it was; None if that can't be told."""
    if known.written is not None and written is not None:
        return {path for path, _ in known.written.items() ^ written.items()}
    stamps = {**known.folders, **known.files}
    output = await scripts.run(_STAMPS, as_names(stamps), max_bytes=MAX_LISTING)
    now, _, listed = output.decode(errors="replace").partition("\0")
    found = listed.split("\n")[:-1]
    if len(found) != len(stamps):  # something is gone
        return None
    return {path for (path, old), new in zip(stamps.items(), found, strict=True) if old != _stamp(new, now)}


async def _listed_again(scripts: Scripts, known: Listing, again: Collection[str]) -> Listing:
    """What was known, but for some files, for what lies in some folders, and for all below folders that are new."""
    files, folders = await _listed(scripts, again, "-maxdepth 1")
    if new := sorted(folders.keys() - known.folders.keys()):
        more_files, more_folders = await _listed(scripts, new)
        files, folders = files | more_files, folders | more_folders
    listed = set(again)
    gone = {path for path in known.folders if _is_in(path, listed)} - folders.keys()

    def now(old: Stamps, fresh: Stamps) -> Stamps:
        kept = {path: stamp for path, stamp in old.items() if not _is_in(path, listed) and not _is_below(path, gone)}
        return dict(sorted({**kept, **fresh}.items()))

    return Listing(now(known.files, files), now(known.folders, folders), known.written)


def _is_in(path: str, listed: Set[str]) -> bool:
    """Whether a path is one of these, or directly in one."""
    return path in listed or (path.rpartition("/")[0] or ".") in listed


def _is_below(path: str, folders: Set[str]) -> bool:
    while folders and path:
        path = path.rpartition("/")[0]
        if path in folders:
            return True
    return False


async def _listed(scripts: Scripts, paths: Collection[str], depth: str = "") -> tuple[dict[str, str], dict[str, str]]:
    """The source files and folders among and below some paths, with their stamps."""
    output = await scripts.run(_LIST, as_names(paths), depth, max_bytes=MAX_LISTING)
    entries = _entries(output)
    if entries is None or len(entries) > MAX_FILES:
        raise ToolError(f"{scripts.root} can't be listed, or has more source files than can be searched; use bash.")
    files = {path: stamp for path, (kind, stamp) in entries.items() if kind == "f"}
    return files, {path: stamp for path, (kind, stamp) in entries.items() if kind == "d"}


def _entries(output: bytes) -> dict[str, tuple[str, str]] | None:
    """Kinds and stamps by path; None if the output was cut."""
    now, *fields = output.decode(errors="surrogateescape").split("\0")
    if fields[-1:] != [""]:
        return None
    return {
        name[1:].removeprefix("./"): (name[0], _stamp(stamp, now))
        for name, stamp in zip(fields[:-1:2], fields[1:-1:2], strict=True)
    }


def _stamp(found: str, now: str) -> str:
    """Size, change time and inode number; if it could change again without their doing so, also when that was."""
    size, time, number = found.split(" ")
    settled = float(time) < float(now) - UNSETTLED_S
    # `find` writes a digit more than `stat`.
    return f"{size} {time[: time.index('.') + 10]} {number}" + ("" if settled else f" {now}")
