"""What every process knows of every trajectory of a batch: small, so that it can be exchanged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from skyrl_gym.errors import StopReason
from skyrl_gym.rollout import Trajectory
from skyrl_gym.trainer.advantages import Estimator, returns_to_go, turn_advantages

__all__ = ["Outcome", "advantages_of", "groups_with_signal"]


@dataclass(frozen=True)
class Outcome:
    """A trajectory without its content.

    `returns` is None for an excluded one, else the reward, or one return a turn where credit is given by turn.
    `trained` says that its ending allows it into the loss; in the baseline it is in any case. `versions` are
    those of the policy at its first and last sampled token.
    """

    group: str
    env_id: str
    ending: StopReason
    reward: float | None
    returns: tuple[float, ...] | None
    trained: bool
    turns: int
    invalid_turns: int
    sampled_tokens: int
    tool_calls: Mapping[str, int]
    tool_errors: int
    versions: tuple[int, int] | None
    seconds: Mapping[str, float]

    @classmethod
    def of(cls, trajectory: Trajectory, turn_discount: float | None, masked: Collection[StopReason]) -> Outcome:
        """From a trajectory; without a discount its credit is the same for all turns."""
        steps = [turn.transition for turn in trajectory.turns if turn.transition and turn.transition.sampled_ids]
        calls = Counter(call.name for turn in trajectory.turns for call in turn.message.tool_calls)
        return cls(
            trajectory.group,
            trajectory.env_id,
            trajectory.stop_reason,
            trajectory.reward if trajectory.valid else None,
            _returns(trajectory, turn_discount),
            trajectory.valid and bool(steps) and trajectory.stop_reason not in masked,
            len(trajectory.turns),
            sum(turn.invalid for turn in trajectory.turns),
            trajectory.sampled_tokens,
            dict(calls),
            sum(turn.errors for turn in trajectory.turns),
            (steps[0].versions[0], steps[-1].versions[-1]) if steps else None,
            {name: sum(t.seconds.get(name, 0.0) for t in trajectory.turns) for name in ("policy", "tools")},
        )


def groups_with_signal(outcomes: Iterable[Outcome]) -> set[str]:
    """The groups that something can be learned from: they differ in reward, and some may be trained on."""
    members: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.returns is not None:
            members.setdefault(outcome.group, []).append(outcome)
    return {
        name
        for name, group in members.items()
        if len({outcome.returns for outcome in group}) > 1 and any(outcome.trained for outcome in group)
    }


def advantages_of(outcomes: list[Outcome], estimator: Estimator, *, drop_flat: bool) -> list[tuple[float, ...] | None]:
    """The advantages of a batch; None for what isn't trained on.

    Args:
        drop_flat: leave out groups without a signal, as if they had not been drawn. Kept, their tokens count
            where the loss is divided by the number of tokens, and in the KL term.
    """
    signal = groups_with_signal(outcomes) if drop_flat else {outcome.group for outcome in outcomes}
    returns = [outcome.returns if outcome.group in signal else None for outcome in outcomes]
    found = turn_advantages(returns, [outcome.group for outcome in outcomes], estimator)
    return [value if outcome.trained else None for outcome, value in zip(outcomes, found, strict=True)]


def _returns(trajectory: Trajectory, turn_discount: float | None) -> tuple[float, ...] | None:
    if not trajectory.valid or trajectory.reward is None:
        return None
    if turn_discount is None or not trajectory.turns:
        return (trajectory.reward,)
    by_turn = [turn.reward for turn in trajectory.turns]
    return returns_to_go(by_turn, trajectory.reward - sum(by_turn), turn_discount)
