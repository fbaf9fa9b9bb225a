"""What a run does about failures: how often it tries again, when it pauses, and when it gives up."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from skyrl_gym.errors import ConfigError, PolicyError, SandboxError

__all__ = ["Breaker", "FailurePolicy", "Part", "in_a_line", "part_of"]

Part: TypeAlias = Literal["policy", "sandbox"]
"""A part of the machinery that all trajectories share, so that it can be down for everyone at once."""


def part_of(error: BaseException | None) -> Part | None:
    """Which shared part a failure speaks of, by class hierarchy; None where it is a trajectory's own."""
    match error:
        case PolicyError():
            return "policy"
        case SandboxError():
            return "sandbox"
        case _:
            return None


def in_a_line(error: BaseException | None) -> str:
    """What an error says, for a log."""
    return (str(error) or type(error).__name__).partition("\n")[0][:200]


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """How a run takes failures of the machinery. `RolloutLimits.retries` bounds those of one trajectory.

    Args:
        retry_share: retries of the whole run, as a share of the trajectories begun (ten are always allowed).
        backoff_s, backoff_limit_s: the first pause before a retry, doubled each time, and the longest; in
            seconds, each drawn between half and one and a half of it.
        trip_after: failures of one part of the machinery in a row, over all trajectories, before the run
            pauses. Failures of what was in flight then cost no retry.
        probe_s, probe_limit_s: the pause before a single trajectory tries whether the part is back, doubled
            each time, and the longest.
        give_up_s: how long a part may be down before the run aborts.
        abort_share: the run aborts once more than this share of at least `abort_after` trajectories failed.
        abort_after: see `abort_share`.
    """

    retry_share: float = 0.5
    backoff_s: float = 0.25
    backoff_limit_s: float = 30.0
    trip_after: int = 8
    probe_s: float = 2.0
    probe_limit_s: float = 60.0
    give_up_s: float = 900.0
    abort_share: float = 0.5
    abort_after: int = 50

    def __post_init__(self) -> None:
        for name in ("retry_share", "abort_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"FailurePolicy.{name} is a share from 0 to 1; got {getattr(self, name)}")

    def pause(self, attempt: int) -> float:
        """Seconds before the next try, after `attempt` (from 0) failed."""
        return min(self.backoff_limit_s, self.backoff_s * 2.0 ** min(attempt, 30)) * random.uniform(0.5, 1.5)

    def may_retry(self, retried: int, begun: int) -> bool:
        """The run's budget has a retry left."""
        return retried < max(10, self.retry_share * begun)

    def verdict(self, failed: int, finished: int) -> bool:
        """So much has failed that going on is a waste."""
        return finished >= self.abort_after and failed > self.abort_share * finished


@dataclass
class _State:
    """What is known of one part."""

    failures: int = 0
    down_since: float | None = None
    probe_at: float = 0.0
    pause_s: float = 0.0
    probing: bool = False


@dataclass
class Breaker:
    """Pauses a run while a part of its machinery is down, and finds out when it is back.

    Times are those of one clock, in seconds.
    """

    policy: FailurePolicy
    _parts: dict[Part, _State] = field(default_factory=dict)

    @property
    def down(self) -> tuple[Part, ...]:
        """The parts that the run waits for."""
        return tuple(part for part, state in self._parts.items() if state.down_since is not None)

    def is_down(self, part: Part) -> bool:
        """The run waits for this part."""
        return part in self.down

    def works(self, part: Part) -> None:
        """The part did its work."""
        self._parts.pop(part, None)

    def fails(self, part: Part, now: float) -> bool:
        """The part failed; gives whether it counts as down for everyone from now on."""
        state = self._parts.setdefault(part, _State())
        state.failures += 1
        if state.down_since is not None or state.failures < self.policy.trip_after:
            return False
        state.down_since, state.pause_s = now, self.policy.probe_s
        state.probe_at = now + state.pause_s
        return True

    def admits(self, now: float) -> bool:
        """A trajectory may begin now."""
        return all(not state.probing and state.probe_at <= now for state in self._down())

    def begin(self) -> bool:
        """A trajectory begins; gives True where it is the probe of a part that is down."""
        for state in self._down():
            state.probing = True
        return bool(self.down)

    def probe_ended(self, now: float) -> None:
        """The probe is over; for parts that it didn't find at work, another follows later."""
        for state in self._down():
            if state.probing:
                state.probing = False
                state.pause_s = min(self.policy.probe_limit_s, 2 * state.pause_s)
                state.probe_at = now + state.pause_s

    def next_probe(self) -> float | None:
        """When a probe is due, or None where none is waited for."""
        return max((state.probe_at for state in self._down() if not state.probing), default=None)

    def given_up(self, now: float) -> Part | None:
        """A part that was down for too long."""
        for part, state in self._parts.items():
            if state.down_since is not None and now - state.down_since > self.policy.give_up_s:
                return part
        return None

    def _down(self) -> list[_State]:
        return [state for state in self._parts.values() if state.down_since is not None]
