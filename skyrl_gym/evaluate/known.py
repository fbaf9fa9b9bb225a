"""A probe of the environment's own in the policy's place: `gold`, `nothing`, or a cheat."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from skyrl_gym.errors import ConfigError
from skyrl_gym.evaluate.scripts import ScriptPlayer, completion_of, each
from skyrl_gym.probes import GOLD
from skyrl_gym.registration import make_env
from skyrl_gym.rollout import Deadlines, Journal, RolloutRequest, Trajectory

__all__ = ["KnownPlayer", "KnownRunner"]


@dataclass(frozen=True, slots=True)
class KnownPlayer:
    """Who plays: the probe of this name, whichever task it is."""

    name: str = GOLD


@dataclass(frozen=True)
class KnownRunner:
    """As `Runner`, for a known player."""

    player: KnownPlayer
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    concurrency: int = 8
    retries: int = 2
    deadlines: Deadlines = Deadlines()
    journal: Journal | None = None

    async def run(self, requests: Iterable[RolloutRequest]) -> AsyncGenerator[Trajectory, None]:
        """One trajectory a request, as they finish.

        Raises:
            ConfigError: the environment declares no such probe.
        """
        scripts = ScriptPlayer(self.player.name, self.env_kwargs, self.retries, self.deadlines)

        async def play(request: RolloutRequest) -> Trajectory:
            probes = await make_env(request.env_id, **self.env_kwargs).aprobes(request.task)
            if self.player.name not in probes:
                raise ConfigError(
                    f"{request.env_id} declares no probe {self.player.name!r}; it has {', '.join(probes)}"
                )
            actions = probes[self.player.name].actions
            played = await scripts.play(request, [completion_of(action) for action in actions])
            return played.trajectory

        async with aclosing(each(requests, play, self.concurrency)) as trajectories:
            async for trajectory in trajectories:
                if self.journal is not None:
                    self.journal.append(trajectory)
                yield trajectory
