"""What was graded, as a diff to be looked at: made by git from the files themselves, whatever is in them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from skyrl_gym.envs.swe.changes import Changes
from skyrl_gym.envs.swe.patches import run_git

__all__ = ["MOST_CHARACTERS", "diff", "held_in"]

MOST_CHARACTERS = 200_000
MOST_BYTES = 1_048_576  # of the two versions of a file; more are not compared
MOST_FILES = 500
# No line of a file begins like this in a diff.
_BEGIN = re.compile(r"^diff --git [ab]/(\d+) [ab]/\d+\n", re.MULTILINE)
_OPTIONS = ("--no-index", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", "--no-prefix")


def held_in(tree: Path, changes: Changes) -> Mapping[str, bytes]:
    """What a tree has of the files that are changed."""
    root = tree.resolve()
    paths = {name: tree / name for name in changes if len(name) < 4_096}
    return {
        name: path.read_bytes()
        for name, path in paths.items()
        if path.resolve().is_relative_to(root) and path.is_file() and not path.is_symlink()
    }


def diff(before: Mapping[str, bytes], changes: Changes) -> str:
    """The changes as a unified diff; what is too long is left out, with a note.

    Raises:
        SetupError: git is not installed or does not end.
    """
    compared: list[str] = []
    left_out: list[str] = []
    for name, after in sorted(changes.items()):
        size = len(before.get(name) or b"") + len(after or b"")
        (compared if size <= MOST_BYTES and len(compared) < MOST_FILES else left_out).append(name)
    notes = "".join(f"[{name}: not shown]\n" for name in left_out[:MOST_FILES])
    return _cut("".join(_parts(compared, before, changes))) + _cut(notes)


def _parts(names: list[str], before: Mapping[str, bytes], changes: Changes) -> Iterator[str]:
    # By number: a name could lead elsewhere, or be one that git obeys, as .gitattributes is.
    with tempfile.TemporaryDirectory() as folder:
        for side, held in (("a", before), ("b", changes)):
            Path(folder, side).mkdir()
            for number, name in enumerate(names):
                if (data := held.get(name)) is not None:
                    Path(folder, side, str(number)).write_bytes(data)
        text = run_git(["diff", *_OPTIONS, "a", "b"], Path(folder)).stdout
    _, *parts = _BEGIN.split(text.encode(errors="surrogateescape").decode(errors="replace"))
    for place, body in zip(parts[::2], parts[1::2], strict=True):
        yield _named(names[int(place)].encode(errors="replace").decode(), place, body)


def _named(name: str, place: str, body: str) -> str:
    head, mark, hunks = body.partition("\n@@ ")
    for side in "ab":
        head = head.replace(f"{side}/{place}", f"{side}/{name}")
    return f"diff --git a/{name} b/{name}\n{head}{mark}{hunks}"


def _cut(text: str) -> str:
    left_out = len(text) - MOST_CHARACTERS
    return text if left_out <= 0 else f"{text[:MOST_CHARACTERS]}\n[... {left_out:,} characters left out ...]\n"
