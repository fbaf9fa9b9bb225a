"""Edits on bytes: what an edit doesn't name stays as it is (tabs, CRLF, BOM, a missing last newline, any encoding)."""

from __future__ import annotations

import difflib

from skyrl_gym.errors import ToolError

__all__ = ["encode_text", "first_difference", "insert_text", "replace_text", "view_text"]

MAX_VIEW_LINES = 400
# How much of a file is searched for lines like a missing one: comparing is slow.
MAX_COMPARED_LINES = 5_000
MAX_COMPARED_LENGTH = 300
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def view_text(data: bytes, first: int = 1, last: int = -1) -> str:
    """Numbered lines from `first` to `last`, both included and counted from 1; `last` -1 is the end.

    Raises:
        ToolError: the range doesn't fit the file, or the file is binary.
    """
    if b"\0" in data[:8_192]:
        raise ToolError("This is a binary file; use bash to look at it.")
    lines = _lines(data)
    if not lines:
        return "The file is empty."
    end = len(lines) if last == -1 else min(last, len(lines))
    if not 1 <= first <= end:
        raise ToolError(f"The range {first} to {last} does not fit a file of {len(lines)} lines.")
    shown = lines[first - 1 : min(end, first - 1 + MAX_VIEW_LINES)]
    text = "\n".join(f"{number:6}\t{line}" for number, line in enumerate(shown, first))
    left = end - (first - 1) - len(shown)
    more = f"\n[{left} more lines; use view_range to see them]" if left > 0 else ""
    return text + more


def encode_text(text: str) -> bytes:
    """The text in UTF-8; an escaped byte (U+DC80 to U+DCFF) stands for itself.

    Raises:
        ToolError: half of a surrogate pair.
    """
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError as error:
        half = ascii(text[error.start])
        raise ToolError(f"The text holds half of a character ({half}); write the character itself.") from None


def replace_text(data: bytes, old: str, new: str) -> bytes:
    """The file with the one place where `old` stands replaced by `new`.

    Raises:
        ToolError: `old` is empty, equal to `new`, nowhere (the nearest lines are shown) or in several places (they
            are named).
    """
    if not old:
        raise ToolError("old_str is empty; use insert to add text, or create for a new file.")
    if old == new:
        raise ToolError("old_str and new_str are the same; nothing would change.")
    for form_old, form_new, encoding in _forms(data, old, new):
        wanted = _encoded(form_old, encoding)
        count = data.count(wanted) if wanted else 0
        if count > 1:
            lines = ", ".join(map(str, dict.fromkeys(_line_numbers(data, wanted)[:10])))
            raise ToolError(f"old_str stands in {count} places (lines {lines}); add lines around it to make it unique.")
        if count == 1:
            replacement = _encoded(form_new, encoding)
            if not replacement and form_new:
                raise ToolError(f"new_str holds characters that the file's encoding ({encoding}) has not.")
            return data.replace(wanted, replacement)
    raise ToolError(f"old_str is not in the file. {_nearest(data, old)}")


def insert_text(data: bytes, line: int, text: str) -> bytes:
    """The file with `text` as new lines after line `line`; 0 is the beginning.

    Raises:
        ToolError: there is no such line.
    """
    mark = _BYTE_ORDER_MARK if data.startswith(_BYTE_ORDER_MARK) else b""  # stays at the beginning
    pieces = data.removeprefix(mark).split(b"\n")
    lines = [piece + b"\n" for piece in pieces[:-1]] + ([pieces[-1]] if pieces[-1] else [])
    if not 0 <= line <= len(lines):
        raise ToolError(f"insert_line is between 0 and {len(lines)}; got {line}.")
    newline = _newline(data)
    added = encode_text(text).replace(b"\r\n", b"\n").replace(b"\n", newline)
    before, after = mark + b"".join(lines[:line]), b"".join(lines[line:])
    if before != mark and not before.endswith(b"\n"):
        return before + newline + added.removesuffix(newline)
    return before + (added if added.endswith(newline) else added + newline) + after


def first_difference(before: bytes, after: bytes) -> int:
    """The number of the first line that differs, counted from 1."""
    for number, (old, new) in enumerate(zip(before.split(b"\n"), after.split(b"\n"), strict=False), 1):
        if old != new:
            return number
    return min(before.count(b"\n"), after.count(b"\n")) + 1


def _lines(data: bytes) -> list[str]:
    """Lines as `grep -n` counts them: form feeds and other separators of Unicode's don't end one."""
    lines = [line.removesuffix("\r") for line in data.decode(errors="replace").split("\n")]
    return lines if lines[-1] else lines[:-1]


def _forms(data: bytes, old: str, new: str) -> list[tuple[str, str, str]]:
    """How the texts may stand in the file: with its line ends or as given, in UTF-8 or in its own encoding."""
    newline = _newline(data).decode()
    forms = [(old, new)]
    if newline != "\n" and "\r" not in old + new:
        forms.insert(0, (old.replace("\n", newline), new.replace("\n", newline)))
    encodings = ["utf-8"] if _encoded_as_utf8(data) else ["utf-8", "latin-1"]
    return [(*form, encoding) for form in forms for encoding in encodings]


def _encoded(text: str, encoding: str) -> bytes:
    """Empty if the encoding can't hold the text."""
    try:
        return text.encode(encoding, errors="surrogateescape")
    except UnicodeEncodeError:
        return b""


def _encoded_as_utf8(data: bytes) -> bool:
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
        start = data.find(wanted, start + len(wanted))
    return numbers


def _nearest(data: bytes, old: str) -> str:
    """The lines of the file that are most like what was asked for."""
    lines = _lines(data)
    wanted = [line for line in old.splitlines() if line.strip()][:3] or [old]
    stripped = {line.strip() for line in wanted}
    near = {line for line in lines if line.strip() in stripped}
    if not near:
        compared = [line for line in lines[:MAX_COMPARED_LINES] if len(line) <= MAX_COMPARED_LENGTH]
        short = [line for line in wanted if len(line) <= MAX_COMPARED_LENGTH]
        near = {match for line in short for match in difflib.get_close_matches(line, compared, n=2, cutoff=0.6)}
    if not near:
        return "No line of it is like the text; view the file first."
    shown = [f"{number:6}\t{line}" for number, line in enumerate(lines, 1) if line in near][:5]
    return "The nearest lines (white space counts):\n" + "\n".join(shown)
