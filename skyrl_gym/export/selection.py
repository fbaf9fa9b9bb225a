"""Which trajectories leave a run, as which training sequences, and a count of those that stay behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from skyrl_gym.evaluate.metrics import is_judged
from skyrl_gym.rollout import Trajectory
from skyrl_gym.trainer.samples import Sample, samples_of

__all__ = ["Selection", "Sequence"]


@dataclass(frozen=True, slots=True)
class Sequence:
    """One training sequence of a trajectory.

    `last` says that none of the trajectory's follows; an episode has more than one where its context was
    rewritten. `aligned_logprobs` has one entry a completion token.
    """

    trajectory: Trajectory
    sample: Sample
    last: bool

    @property
    def reward(self) -> float:
        """The trajectory's reward."""
        assert self.trajectory.reward is not None
        return self.trajectory.reward

    @property
    def aligned_logprobs(self) -> list[float] | None:
        """The log-probabilities of sampled tokens, 0.0 where the environment wrote; None if any is missing."""
        if self.sample.logprobs is None:
            return None
        known = iter(self.sample.logprobs)
        return [next(known) if sampled else 0.0 for sampled in self.sample.mask]


class Selection:
    """The judged trajectories of a stream; what was left out is counted while it is read.

    Args:
        trajectories: any, in any order; read once.
        min_reward: leave out what was rewarded less.

    Attributes:
        written: trajectories that were let through.
        excluded: those without a reward that counts, by their ending.
        below: those rewarded less than `min_reward`.
        without_tokens: those let through, but left out of token formats since the policy gave no ids.
        without_logprobs: sequences let through whose log-probabilities the policy did not give.
    """

    def __init__(self, trajectories: Iterable[Trajectory], *, min_reward: float | None = None) -> None:
        self.written = 0
        self.excluded: Counter[str] = Counter()
        self.below = 0
        self.without_tokens = 0
        self.without_logprobs = 0
        self._trajectories = trajectories
        self._min_reward = min_reward

    def __iter__(self) -> Iterator[Trajectory]:
        for trajectory in self._trajectories:
            if not is_judged(trajectory):
                self.excluded[trajectory.stop_reason.value] += 1
            elif self._min_reward is not None and (trajectory.reward or 0.0) < self._min_reward:
                self.below += 1
            else:
                self.written += 1
                yield trajectory

    def sequences(self) -> Iterator[Sequence]:
        """The trajectories as training sequences, one after the other."""
        for index, trajectory in enumerate(self):
            samples = samples_of(trajectory, index, 0.0) if _has_tokens(trajectory) else []
            if not samples:
                self.written -= 1
                self.without_tokens += 1
            for position, sample in enumerate(samples, 1):
                self.without_logprobs += sample.logprobs is None
                yield Sequence(trajectory, sample, last=position == len(samples))

    def batch(self) -> list[Sequence]:
        """The sequences all at once: groups side by side, a trajectory's own in their order."""
        held = list(self.sequences())
        return sorted(held, key=lambda s: (s.trajectory.env_id, s.trajectory.group, s.trajectory.sample))


def _has_tokens(trajectory: Trajectory) -> bool:
    """Every answer is known token for token: with a gap, what follows it would be of another prompt."""
    return all(turn.transition is not None for turn in trajectory.turns)
