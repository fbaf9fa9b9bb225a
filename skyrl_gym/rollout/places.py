"""Where an attempt is among the places that a run has for each stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from skyrl_gym.rollout.schedule import Order, Slots
from skyrl_gym.rollout.trajectory import Turn

__all__ = ["AttemptPlaces", "Stages"]


class Stages(Protocol):
    """The stages of a run or of a worker, and who is told what happens in them."""

    setup: Slots
    running: Slots
    grading: Slots

    def wake(self) -> None:
        """A place has become free."""
        ...

    def works(self, turn: Turn | None = None, tokens: int = 0) -> None:
        """The policy has answered where there is a turn, with so many tokens; else an environment could be prepared."""
        ...


class AttemptPlaces:
    """The place of one attempt: in setup at first, then on its way to run and to grade."""

    def __init__(self, run: Stages, order: Callable[[], Order]) -> None:
        self._run = run
        self._order = order
        self._held: Slots | None = run.setup

    async def to_run(self) -> None:
        """Leaves the setup stage and waits for a place to run."""
        await self._move(self._run.running)

    async def to_grade(self) -> None:
        """Leaves the run stage and waits for a place to grade."""
        await self._move(self._run.grading)

    async def _move(self, slots: Slots) -> None:
        self.leave()
        await slots.acquire(self._order)
        self._held = slots

    def leave(self) -> None:
        """Gives back whatever place is held."""
        if self._held is not None:
            held, self._held = self._held, None
            held.release()
            self._run.wake()

    def prepared(self) -> None:
        """An environment could be prepared."""
        self._run.works()

    def answered(self, turn: Turn, tokens: int) -> None:
        """The policy has answered."""
        self._run.works(turn, tokens)
