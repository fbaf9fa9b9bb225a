"""The editor at work on a sandbox's files: it reads, changes, writes, and takes changes back."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable
from dataclasses import dataclass

from skyrl_gym.envs.swe.editor import encode_text, first_difference, insert_text, replace_text, view_text
from skyrl_gym.envs.swe.syntax import SyntaxCheck
from skyrl_gym.errors import SandboxError, SandboxLost, ToolError
from skyrl_gym.sandbox import Sandbox

__all__ = ["SYNTAX_WARNING", "FileEditor"]

COMMAND_S = 30.0
SYNTAX_WARNING = "Warning: the file does not parse after this edit:"
MAX_LISTING = 16_384
# The first of a file's folders that is not there yet: whatever is below it is made with the file.
_MISSING = 'while [ ! -d "${1%/*}/" ]; do set -- "${1%/*}"; [ -e "$1" ] || made=$1; done; printf %s "$made"'
_REMOVE = 'rm -- "$1" && if [ -n "$2" ]; then cd / && find "$2" -depth -type d -empty -delete; fi'


@dataclass(frozen=True)
class _Change:
    """`before` is None for a file that was created, and `folder` the topmost folder that was made for it."""

    path: str
    before: bytes | None
    after: bytes
    folder: str = ""


class FileEditor:
    """Views and changes files. What goes wrong is a `ToolError`, except the loss of the sandbox.

    Args:
        box: where the files are; paths are absolute or relative to its workdir.
        syntax: says which fault an edit brings into a file.
    """

    def __init__(self, box: Sandbox, syntax: SyntaxCheck) -> None:
        self._box = box
        self._syntax = syntax
        self._changes: list[_Change] = []

    def moved(self, box: Sandbox) -> FileEditor:
        """An editor of the same files in a fork of the sandbox; it can undo what this one can."""
        other = FileEditor(box, self._syntax.moved(box))
        other._changes = list(self._changes)
        return other

    async def view(self, path: str, first: int = 1, last: int = -1) -> str:
        """A file's lines with their numbers, or what is in a folder, two levels deep."""
        try:
            return view_text(await self._read(path), first, last)
        except IsADirectoryError:
            return await self._list(path)
        except OSError as error:
            raise ToolError(f"{error}.") from None

    async def create(self, path: str, text: str) -> str:
        """Makes a file that is not there yet."""
        if await self._read_or_none(path) is not None:
            raise ToolError(f"{path} is there already; use str_replace to change it.")
        data = encode_text(text)
        place = self._absolute(path)
        missing = await self._box.inspect(["sh", "-c", _MISSING, "sh", place], timeout_s=COMMAND_S)
        await self._put(path, data)
        self._changes.append(_Change(place, None, data, missing.text))
        return f"Created {path}.{await self._syntax_warning(path, None, data)}"

    async def replace(self, path: str, old: str, new: str) -> str:
        """Replaces the one place where `old` stands."""
        return await self._change(path, lambda data: replace_text(data, old, new))

    async def insert(self, path: str, line: int, text: str) -> str:
        """Adds lines after a line."""
        return await self._change(path, lambda data: insert_text(data, line, text))

    async def undo(self, path: str) -> str:
        """Takes back this editor's last change of a file."""
        place = self._absolute(path)
        change = next((change for change in reversed(self._changes) if change.path == place), None)
        if change is None:
            raise ToolError(f"There is no change of {path} to take back.")
        if await self._read_or_none(path) != change.after:
            raise ToolError(f"{path} has been changed by something else since; taking the edit back would lose that.")
        if change.before is None:
            removal = ["sh", "-c", _REMOVE, "sh", place, change.folder]
            removed = await self._box.exec(removal, timeout_s=COMMAND_S)
            if removed.code != 0:
                raise ToolError(f"{path} can't be removed: {removed.text.strip()}")
        else:
            await self._put(path, change.before)
        self._changes.remove(change)
        return f"Took back the last change of {path}." if change.before is not None else f"Removed {path} again."

    async def _change(self, path: str, change: Callable[[bytes], bytes]) -> str:
        before = await self._read_or_none(path)
        if before is None:
            raise ToolError(f"There is no file {path}; use create for a new one.")
        after = await asyncio.to_thread(change, before)
        at = first_difference(before, after)
        shown = view_text(after, max(1, at - 3), at + 8) if after else "The file is empty."
        await self._put(path, after)
        self._changes.append(_Change(self._absolute(path), before, after))
        return f"Changed {path}:\n{shown}{await self._syntax_warning(path, before, after)}"

    async def _list(self, path: str) -> str:
        place = self._absolute(path)
        hidden = ["-mindepth", "1", "-maxdepth", "2", "-name", ".*", "-prune"]
        command = ["find", place, *hidden, "-o", "-type", "d", "-printf", "%p/\n", "-o", "-printf", "%p\n"]
        result = await self._box.exec(command, timeout_s=COMMAND_S, max_bytes=MAX_LISTING)
        return "\n".join(sorted(result.text.splitlines())) or f"{path} is an empty folder."

    async def _read_or_none(self, path: str) -> bytes | None:
        try:
            return await self._read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ToolError(f"{error}.") from None

    async def _read(self, path: str) -> bytes:
        try:
            return await self._box.read(self._absolute(path))
        except SandboxLost:
            raise
        except SandboxError as error:  # a file too large to be edited is no failure of the machinery
            raise ToolError(f"{error}; use bash.") from None

    async def _put(self, path: str, data: bytes) -> None:
        try:
            await self._box.write(self._absolute(path), data)
        except PermissionError:
            raise ToolError(f"{path} can't be written: it, or a folder that it is in, is read-only.") from None
        except OSError as error:
            raise ToolError(f"{error}.") from None

    async def _syntax_warning(self, path: str, before: bytes | None, after: bytes) -> str:
        fault = await self._syntax.new_fault(path, before, after)
        return f"\n{SYNTAX_WARNING} {fault}" if fault else ""

    def _absolute(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self._box.spec.workdir, path))
