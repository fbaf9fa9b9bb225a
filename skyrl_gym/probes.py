"""Known players of a task: what an environment says of itself so that its tasks and its grader can be checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from skyrl_gym.spaces import Action

__all__ = ["GOLD", "NOTHING", "Probe"]

GOLD = "gold"
"""The name of the probe that solves the task."""

NOTHING = "nothing"
"""The name of the probe that does nothing at all."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Actions, one a turn, and the bounds of what they may earn.

    An episode that the actions leave open is graded as it stands.
    """

    actions: Sequence[Action]
    least: float = -math.inf
    most: float = math.inf

    def allows(self, reward: float) -> bool:
        """Whether a reward lies within the bounds."""
        return self.least <= reward <= self.most

    @property
    def expected(self) -> str:
        """The bounds in words."""
        if self.least == self.most:
            return f"{self.least:g}"
        bounds = [f"at least {self.least:g}"] if math.isfinite(self.least) else []
        bounds += [f"at most {self.most:g}"] if math.isfinite(self.most) else []
        return " and ".join(bounds) or "any reward"
