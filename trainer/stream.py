"""Which task comes next: one endless, repeatable sequence over one environment or a mixture of several."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from skyrl_gym.errors import ConfigError
from skyrl_gym.rollout import RolloutRequest
from skyrl_gym.tasks import Task, TaskSet

__all__ = ["Draw", "Ingredient", "TaskStream"]


@dataclass(frozen=True)
class Draw:
    """The task of one group of trajectories. `number` counts the groups of a run from 0."""

    number: int
    env_id: str
    task: Task

    def requests(self, size: int) -> list[RolloutRequest]:
        """Its `size` trajectories. No two of a run have the same key, however often a task comes."""
        group = f"{self.number}/{self.task.id}"
        first = self.number * size
        return [RolloutRequest(self.env_id, self.task, group, first + i, samples=size) for i in range(size)]


@dataclass(frozen=True)
class Ingredient:
    """An environment of a mixture.

    `weight` is its share, relative to the others': a number, or numbers at some steps, linear in between
    and constant outside.

    Raises:
        ConfigError: no tasks, or a weight below 0.
    """

    env_id: str
    tasks: TaskSet
    weight: float | Mapping[int, float] = 1.0

    def __post_init__(self) -> None:
        if not len(self.tasks):
            raise ConfigError(f"the task set {self.tasks.name!r} of {self.env_id} is empty: nothing to train on")
        if isinstance(self.weight, Mapping) and not self.weight:
            raise ConfigError(f"{self.env_id}: a schedule of weights needs at least one step")
        if any(value < 0 for value in self._points.values()):
            raise ConfigError(f"{self.env_id}: a weight is 0 or more; got {self.weight!r}")

    @property
    def _points(self) -> Mapping[int, float]:
        return self.weight if isinstance(self.weight, Mapping) else {0: self.weight}

    @property
    def steps(self) -> tuple[int, ...]:
        """Where the weight bends."""
        return tuple(sorted(self._points))

    def weight_at(self, step: float) -> float:
        """The weight at a step; steps in between count."""
        steps = self.steps
        after = bisect_right(steps, step)
        if after in (0, len(steps)):
            return self._points[steps[max(0, after - 1)]]
        left, right = steps[after - 1], steps[after]
        share = (step - left) / (right - left)
        return self._points[left] * (1 - share) + self._points[right] * share


class TaskStream:
    """Groups in order: `next()` gives the one at `position`.

    Environments take turns by weight, as evenly as can be; the tasks of each come shuffled, all of them
    before any comes again. The sequence depends on the arguments alone.

    Args:
        ingredients: what is mixed; each environment once.
        groups_per_step: what turns a position into a step of the weights' schedules.
        seed: of the shuffling.

    Raises:
        ConfigError: nothing to mix, an environment twice, or a step at which all weights are 0.
    """

    def __init__(self, ingredients: Sequence[Ingredient], groups_per_step: int, seed: int = 0) -> None:
        names = [ingredient.env_id for ingredient in ingredients]
        if not names:
            raise ConfigError("a mixture needs at least one environment")
        if twice := next((a for a, b in pairwise(sorted(names)) if a == b), None):
            raise ConfigError(f"{twice} is in the mixture twice; a registry entry gives it another id and settings")
        for step in sorted({step for ingredient in ingredients for step in ingredient.steps}):
            if not any(ingredient.weight_at(step) for ingredient in ingredients):
                raise ConfigError(f"at step {step} all weights of the mixture are 0")
        self._ingredients = ingredients
        self._groups_per_step = groups_per_step
        self._seed = seed
        self._credit = [0.0] * len(ingredients)
        self._drawn = [0] * len(ingredients)
        self._orders: dict[int, tuple[int, list[int]]] = {}
        self.position = 0

    def next(self) -> Draw:
        """The next group."""
        number, chosen = self.position, self._advance()
        ingredient = self._ingredients[chosen]
        epoch, place = divmod(self._drawn[chosen] - 1, len(ingredient.tasks))
        return Draw(number, ingredient.env_id, ingredient.tasks[self._order(chosen, epoch)[place]])

    def skip_to(self, position: int) -> None:
        """Goes on from a later position.

        Raises:
            ConfigError: it has been passed.
        """
        if position < self.position:
            raise ConfigError(f"the stream is at group {self.position}; it can't go back to {position}")
        while self.position < position:
            self._advance()

    def _order(self, chosen: int, epoch: int) -> list[int]:
        """The order of an environment's tasks in one pass over them; the latest is kept."""
        if self._orders.get(chosen, (-1, []))[0] != epoch:
            ingredient = self._ingredients[chosen]
            order = list(range(len(ingredient.tasks)))
            random.Random(f"{self._seed}:{ingredient.env_id}:{epoch}").shuffle(order)
            self._orders[chosen] = (epoch, order)
        return self._orders[chosen][1]

    def _advance(self) -> int:
        """Which ingredient is next: the one that is furthest behind its share."""
        step = self.position / self._groups_per_step
        weights = [ingredient.weight_at(step) for ingredient in self._ingredients]
        total = sum(weights)
        self._credit = [credit + weight / total for credit, weight in zip(self._credit, weights, strict=True)]
        wanted = [i for i, weight in enumerate(weights) if weight > 0]
        chosen = max(wanted, key=self._credit.__getitem__)
        self._credit[chosen] -= 1
        self._drawn[chosen] += 1
        self.position += 1
        return chosen
