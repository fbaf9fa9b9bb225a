"""Trajectory -> training sequences: every sampled token once, exactly as it was sampled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from skyrl_gym.rollout import Trajectory, Transition

__all__ = ["Sample", "samples_of"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One training sequence.

    `prompt_ids` end where the first sampled token stands; `mask` is 1 on the sampled tokens of
    `completion_ids` and 0 on what the environment wrote between them. `logprobs`, `versions`, `turns` and
    `advantages` have one entry for each token with mask 1; `logprobs` is None where the policy did not give
    them all.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    versions: tuple[int, ...]
    turns: tuple[int, ...]
    advantages: tuple[float, ...]
    task_id: str
    trajectory: int

    @property
    def tokens(self) -> int:
        """Length of the whole sequence."""
        return len(self.prompt_ids) + len(self.completion_ids)

    def spread(self, values: Iterable[float]) -> list[float]:
        """One value for each sampled token -> one for each token of the completion, 0 in between."""
        given = iter(values)
        return [next(given) if bit else 0.0 for bit in self.mask]


def samples_of(trajectory: Trajectory, index: int, advantages: float | Sequence[float]) -> list[Sample]:
    """The sequences of one trajectory: one, and one more for each fork (a rewritten context).

    Args:
        index: names the trajectory within its batch.
        advantages: one for all turns, or one for each.
    """
    drafts: list[_Draft] = []
    for turn, step in enumerate(t.transition for t in trajectory.turns):
        if step is None:
            continue
        if step.fork or not drafts:
            drafts.append(_Draft(step.input_ids))
        else:
            drafts[-1].observe(step.input_ids)
        drafts[-1].sample(turn, step)
    by_turn = [advantages] * len(trajectory.turns) if isinstance(advantages, float) else advantages
    return [draft.finish(trajectory.task_id, index, by_turn) for draft in drafts if any(draft.mask)]


class _Draft:
    """A sequence while it grows."""

    def __init__(self, prompt_ids: tuple[int, ...]) -> None:
        self.prompt_ids = prompt_ids
        self.ids: list[int] = []
        self.mask: list[int] = []
        self.logprobs: list[float] | None = []
        self.versions: list[int] = []
        self.turns: list[int] = []

    def observe(self, ids: tuple[int, ...]) -> None:
        self.ids += ids
        self.mask += [0] * len(ids)

    def sample(self, turn: int, step: Transition) -> None:
        self.ids += step.sampled_ids
        self.mask += [1] * len(step.sampled_ids)
        self.versions += step.versions
        self.turns += [turn] * len(step.sampled_ids)
        if self.logprobs is not None and step.logprobs is not None:
            self.logprobs += step.logprobs
        else:
            self.logprobs = None

    def finish(self, task_id: str, index: int, advantages: Sequence[float]) -> Sample:
        return Sample(
            self.prompt_ids,
            tuple(self.ids),
            tuple(self.mask),
            None if self.logprobs is None else tuple(self.logprobs),
            tuple(self.versions),
            tuple(self.turns),
            tuple(advantages[turn] for turn in self.turns),
            task_id,
            index,
        )
