"""Text that others wrote, made safe to show: escaped, cut where it is very long, and with nothing hidden in it.

Characters that move the cursor, colour a terminal, turn the direction of writing or show as nothing at all
are written out, so that a page never looks different from what the model or the tool really wrote.
"""

from __future__ import annotations

import re
import unicodedata

from markupsafe import Markup, escape

__all__ = ["clip", "plain", "visible"]

MOST = 6_000  # characters kept of a longer text, two thirds of them its head

# Control, format, surrogate and private-use characters, line and paragraph separators (all of the general
# categories Cc, Cf, Cs, Co, Zl and Zp but newline and tab), and letters or marks that have no ink.
_HIDDEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\uf8ff\ufe00-\ufe0e\ufeff\uffa0\ufff9-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff\U000f0000-\U0010ffff"
)
_ANSI = r"\x1b\[[0-?]*[ -/]*[@-~]"  # a control sequence is one thing to the reader
_MARKED = re.compile(f"{_ANSI}|[{_HIDDEN}]")


def visible(text: object) -> Markup:
    """The text escaped for HTML, every hidden character as a marked label."""
    plain = str(text)
    parts, end = [], 0
    for found in _MARKED.finditer(plain):
        parts += [escape(plain[end : found.start()]), _label(found.group())]
        end = found.end()
    return Markup("").join([*parts, escape(plain[end:])])


def plain(text: object) -> Markup:
    """As `visible`, without markup: for attributes."""
    return escape(_MARKED.sub(lambda found: "".join(map(_shown, found.group())), str(text)))


def clip(text: str, most: int = MOST) -> str:
    """Head and tail of a long text, with what is left out counted between them."""
    if len(text) <= most:
        return text
    tail = most // 3
    head = most - tail
    return f"{text[:head]}\n[... {len(text) - most:,} characters left out ...]\n{text[-tail:]}"


def _label(hidden: str) -> Markup:
    name = "terminal control sequence" if len(hidden) > 1 else _name(hidden)
    return Markup('<span class="hidden" title="{}">{}</span>').format(name, "".join(map(_shown, hidden)))


def _shown(character: str) -> str:
    """A character in ink: as it is where it has some, else as Python or Unicode writes it."""
    if not _MARKED.match(character):
        return character
    code = ord(character)
    return repr(character)[1:-1] if code < 0xA0 else f"U+{code:04X}"


def _name(character: str) -> str:
    return f"U+{ord(character):04X} {unicodedata.name(character, 'control character').lower()}"
