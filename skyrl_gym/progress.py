"""How far a long run is: the value that evaluation and training report and that a display shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = ["OnProgress", "Progress"]


@dataclass(frozen=True, slots=True)
class Progress:
    """A stage is `done` of `total` steps through; `total` is 0 while it isn't known.

    `detail` holds the numbers worth showing beside the bar, by name ("loss": 0.12).
    """

    stage: str
    done: int
    total: int
    reward: float | None = None
    message: str = ""
    detail: Mapping[str, float] = field(default_factory=dict)


OnProgress: TypeAlias = Callable[[Progress], None]
