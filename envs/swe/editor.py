"""Edits on bytes: what an edit doesn't name stays as it is (tabs, CRLF, BOM, a missing last newline, any encoding)."""

from __future__ import annotations

import difflib

from skyrl_gym.errors import ToolError

__all__ = ["insert_text", "replace_text", "view_text"]

MAX_VIEW_LINES = 400


def view_text(data: bytes, first: int = 1, last: int | None = None) -> str:
    """Numbered lines from `first` to `last`, both included and counted from 1; `last` -1 is the end.

    Raises:
        ToolError: the range doesn't fit the file, or the file is binary.
    """
    if b"\0" in data[:8_192]:
        raise ToolError("This is a binary file; use bash to look at it.")
    lines = data.decode(errors="replace").splitlines()
    end = len(lines) if last in (None, -1) else int(last or 0)
    if not lines:
        return "The file is empty."
    if not 1 <= first <= min(end, len(lines)):
        raise ToolError(f"The range {first} to {end} does not fit a file of {len(lines)} lines.")
    shown = lines[first - 1 : min(end, first - 1 + MAX_VIEW_LINES)]
    text = "\n".join(f"{number:6}\t{line}" for number, line in enumerate(shown, first))
    left = min(end, len(lines)) - (first - 1) - len(shown)
    more = f"\n[{left} more lines; use view_range to see them]" if left > 0 else ""
    return text + more


def replace_text(data: bytes, old: str, new: str) -> bytes:
    """The file with the one place where `old` stands replaced by `new`.

    Raises:
        ToolError: `old` is empty, nowhere (the nearest lines are shown) or in several places (they are named).
    """
    if not old:
        raise ToolError("old_str is empty; use insert to add text, or create for a new file.")
    for wanted, replacement in _encodings(data, old, new):
        count = data.count(wanted)
        if count == 1:
            return data.replace(wanted, replacement)
        if count > 1:
            lines = ", ".join(map(str, _line_numbers(data, wanted)[:10]))
            raise ToolError(f"old_str stands in {count} places (lines {lines}); add lines around it to make it unique.")
    raise ToolError(f"old_str is not in the file. {_nearest(data, old)}")


def insert_text(data: bytes, line: int, text: str) -> bytes:
    """The file with `text` as new lines after line `line`; 0 is the beginning.

    Raises:
        ToolError: there is no such line.
    """
    lines = data.splitlines(keepends=True) if b"\r\n" in data else data.split(b"\n")
    if b"\r\n" not in data:
        lines = [part + b"\n" for part in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    if not 0 <= line <= len(lines):
        raise ToolError(f"insert_line is between 0 and {len(lines)}; got {line}.")
    newline = _newline(data)
    added = text.encode(errors="surrogateescape").replace(b"\r\n", b"\n").replace(b"\n", newline)
    before, after = b"".join(lines[:line]), b"".join(lines[line:])
    if before and not before.endswith(b"\n"):
        return before + newline + added.removesuffix(newline)
    return before + (added if added.endswith(newline) else added + newline) + after


def _encodings(data: bytes, old: str, new: str) -> list[tuple[bytes, bytes]]:
    """How the texts may stand in the file: as given, with the file's line ends, in its encoding."""
    newline = _newline(data).decode()
    forms = [(old, new)]
    if newline != "\n" and "\r" not in old:
        forms.append((old.replace("\n", newline), new.replace("\n", newline)))
    encodings = ["utf-8"] if _is_utf8(data) else ["utf-8", "latin-1"]
    found = []
    for wanted, replacement in forms:
        for encoding in encodings:
            try:
                found.append((wanted.encode(encoding), replacement.encode(encoding)))
            except UnicodeEncodeError:
                continue
    return found


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _newline(data: bytes) -> bytes:
    return b"\r\n" if data.count(b"\r\n") * 2 > data.count(b"\n") else b"\n"


def _line_numbers(data: bytes, wanted: bytes) -> list[int]:
    numbers, start = [], data.find(wanted)
    while start >= 0:
        numbers.append(data.count(b"\n", 0, start) + 1)
        start = data.find(wanted, start + 1)
    return numbers


def _nearest(data: bytes, old: str) -> str:
    """The lines of the file that are most like what was asked for."""
    lines = data.decode(errors="replace").splitlines()
    wanted = [line for line in old.splitlines() if line.strip()] or [old]
    near = {match for line in wanted[:3] for match in difflib.get_close_matches(line, lines, n=2, cutoff=0.6)}
    if not near:
        return "No line of it is like the text; view the file first."
    shown = [f"{number:6}\t{line}" for number, line in enumerate(lines, 1) if line in near][:5]
    return "The nearest lines (white space counts):\n" + "\n".join(shown)
