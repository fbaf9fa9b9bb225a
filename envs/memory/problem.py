"""What a task asks: a document, a question and the answers."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Problem"]


class Problem(NamedTuple):
    """A document, a question about it, and for each wanted answer its aliases."""

    document: str
    question: str
    answers: tuple[tuple[str, ...], ...]
