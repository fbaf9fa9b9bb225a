"""`TextVectorEnv`: many environments on one event loop, behind Gymnasium's vector API and one of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from skyrl_gym.env import TextEnv
from skyrl_gym.errors import ConfigError, MessageError
from skyrl_gym.messages import Conversation, assistant
from skyrl_gym.rollout import Deadlines
from skyrl_gym.spaces import Action, as_message
from skyrl_gym.vector.pool import Pool
from skyrl_gym.vector.slot import Arrival, Slot

__all__ = ["TextVectorEnv"]

Conversations: TypeAlias = tuple[Conversation, ...]
Seeds: TypeAlias = int | Sequence[int | None] | None


class TextVectorEnv(VectorEnv[Conversations, Sequence[Action], NDArray[Any]]):
    """Steps many environments at once in one process, so that slow tools wait side by side.

    In lock-step, `reset` and `step` do what `gymnasium.vector.SyncVectorEnv` does. Without it, `send` gives actions
    to some environments and `recv` takes what has arrived, in any order.

    A failure of the machinery is data: it truncates the episode of that environment, with `stop_reason` and `error`
    in its info. An exception that nobody declared is raised; the vector can be reset or closed then.

    Args:
        env_fns: makes each environment. All have the same tools.
        autoreset_mode: "NextStep", "SameStep" or "Disabled", as Gymnasium defines them.
        deadlines: `setup_s`, `turn_s`, `grade_s`, `teardown_s` and `stop_s` count, in seconds; a mapping will do.

    Raises:
        ConfigError: no environment, differing tools, or an unknown mode or deadline.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], TextEnv]],
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        deadlines: Deadlines | Mapping[str, float] | None = None,
    ) -> None:
        if not env_fns:
            raise ConfigError("a vector has at least one environment; got none")
        mode, clocks = _mode(autoreset_mode), _clocks(deadlines)
        self._slots = [Slot(number, make, clocks, mode) for number, make in enumerate(env_fns)]
        first = self._slots[0].env
        for slot in self._slots:
            if not isinstance(slot.env, TextEnv):
                raise ConfigError(f"a vector is made of TextEnv without wrappers; got {slot.env}")
            if slot.env.action_space != first.action_space:
                raise ConfigError(f"environment {slot.number} has other tools than environment 0")
        self.num_envs = len(self._slots)
        self.metadata = {**first.metadata, "autoreset_mode": mode}
        self.render_mode = first.render_mode
        self.single_action_space, self.single_observation_space = first.action_space, first.observation_space
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self._pool = Pool(self._slots, f"vector of {type(first).__name__}")

    @property
    def envs(self) -> tuple[TextEnv, ...]:
        """The environments as they are now, to be looked at. One that has failed is replaced at its next reset."""
        return tuple(slot.env for slot in self._slots)

    # ---- in lock-step

    def reset(
        self, *, seed: Seeds = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Conversations, dict[str, Any]]:
        """Begins an episode in every environment, or in those of `options["reset_mask"]`, a boolean array.

        Args:
            seed: one for each environment; an integer stands for itself and those that follow.
            options: handed to each environment. With "tasks", one for each environment, each gets its own.

        Raises:
            MessageError, ConfigError, TaskError: the seeds, the mask or the tasks don't fit.
        """
        self._check_open()
        given = dict(options or {})
        mask = given.pop("reset_mask", None)
        chosen = range(self.num_envs) if mask is None else self._masked(mask)
        wanted = self._wanted(chosen, seed, given)
        if mask is None:
            self._pool.drop()
        self._pool.reset(wanted, alone=True)
        _, infos = self._all(len(wanted))
        return self._observations(), infos

    def step(
        self, actions: Sequence[Action]
    ) -> tuple[Conversations, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """One action for each environment, side by side.

        Raises:
            MessageError: these are no actions, or an environment must be reset first; nobody has moved then.
            Exception: a bug in an environment, once all others have ended their step.
        """
        self._pool.step(self._actions(range(self.num_envs), actions))
        arrivals, infos = self._all(self.num_envs)
        return (
            self._observations(),
            np.array([arrival.reward for arrival in arrivals], dtype=np.float64),
            np.array([arrival.terminated for arrival in arrivals], dtype=np.bool_),
            np.array([arrival.truncated for arrival in arrivals], dtype=np.bool_),
            infos,
        )

    def render(self) -> tuple[Any, ...]:
        """What each environment shows."""
        return tuple(slot.env.render() for slot in self._slots)

    def close_extras(self, **kwargs: Any) -> None:
        """Cancels what is in flight and frees every environment; `close` calls it once."""
        self._pool.close()

    # ---- each at its own pace

    def send_reset(
        self,
        env_ids: int | Sequence[int] | None = None,
        *,
        seed: Seeds = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Begins an episode in some environments, all by default, and does not wait for it.

        Args:
            env_ids: one or several.
            seed, options: as for `reset`; of a list, one for each environment of the vector.

        Raises:
            MessageError, ConfigError: as `reset`, or a result of one of them has not been received.
        """
        chosen = self._chosen(range(self.num_envs) if env_ids is None else env_ids)
        self._pool.reset(self._wanted(chosen, seed, dict(options or {})))

    def send(self, env_ids: int | Sequence[int], actions: Action | Sequence[Action]) -> None:
        """Gives an action to an environment, or one to each of several, and does not wait.

        Raises:
            MessageError: as `step`, or a result of one of them has not been received; nobody has moved then.
        """
        several = [actions] if isinstance(env_ids, int) else actions
        self._pool.step(self._actions(self._chosen(env_ids), several))

    def recv(self, min_ready: int = 1, timeout_s: float | None = None) -> list[Arrival]:
        """Takes what has arrived since, as soon as there is that much of it.

        Args:
            min_ready: how many to wait for.
            timeout_s: the longest wait in seconds; what is there by then is returned, be it nothing.

        Raises:
            MessageError: so many are not in flight.
            Exception: a bug in an environment; what else has arrived can be received afterwards.
        """
        self._check_open()
        return self._pool.take(min_ready, timeout_s)

    # ---- both

    def _all(self, count: int) -> tuple[list[Arrival], dict[str, Any]]:
        """Waits for all that was begun, and gives the arrivals and their infos in the order of the environments."""
        try:
            arrivals = sorted(self._pool.take(count), key=lambda arrival: arrival.env_id)
        except Exception:
            self._pool.drop()
            raise
        infos: dict[str, Any] = {}
        for arrival in arrivals:
            infos = self._add_info(infos, arrival.info, arrival.env_id)
        return arrivals, infos

    def _actions(self, env_ids: Sequence[int], actions: Any) -> dict[int, Action]:
        self._check_open()
        if not isinstance(actions, Iterable) or isinstance(actions, str) or len(several := [*actions]) != len(env_ids):
            raise MessageError(f"expected {len(env_ids)} actions, one for each environment; got {actions!r:.200}")
        for action in several:
            as_message(action, assistant)  # raises where it is none
        return dict(zip(env_ids, several, strict=True))

    def _observations(self) -> Conversations:
        return tuple(slot.observation for slot in self._slots)

    def _check_open(self) -> None:
        if self.closed:
            raise MessageError("the vector is closed")

    def _chosen(self, env_ids: int | Sequence[int]) -> list[int]:
        self._check_open()
        chosen = [env_ids] if isinstance(env_ids, int) else list(env_ids)
        if len(set(chosen)) != len(chosen) or not set(chosen) <= set(range(self.num_envs)):
            raise MessageError(f"env_ids go from 0 to {self.num_envs - 1}, each given once; got {chosen}")
        return chosen

    def _masked(self, mask: Any) -> list[int]:
        if not isinstance(mask, np.ndarray) or mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            raise MessageError(f"options['reset_mask'] is a boolean array of {self.num_envs}; got {mask!r}")
        if not mask.any():
            raise MessageError(f"options['reset_mask'] chooses no environment: {mask!r}")
        return [int(number) for number in np.flatnonzero(mask)]

    def _seeds(self, seed: Seeds) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int):
            return range(seed, seed + self.num_envs)
        if len(seed) != self.num_envs:
            raise MessageError(f"expected an integer or {self.num_envs} seeds; got {len(seed)}")
        return seed

    def _wanted(
        self, chosen: Iterable[int], seed: Seeds, options: dict[str, Any]
    ) -> dict[int, tuple[int | None, Mapping[str, Any]]]:
        seeds, tasks = self._seeds(seed), options.pop("tasks", None)
        if tasks is None:
            return {number: (seeds[number], options) for number in chosen}
        if len(tasks) != self.num_envs:
            raise MessageError(f"expected {self.num_envs} tasks, one for each environment; got {len(tasks)}")
        return {number: (seeds[number], {**options, "task": tasks[number]}) for number in chosen}


def _mode(given: str | AutoresetMode) -> AutoresetMode:
    try:
        return AutoresetMode(given)
    except ValueError:
        known = ", ".join(mode.value for mode in AutoresetMode)
        raise ConfigError(f"autoreset_mode is one of {known}; got {given!r}") from None


def _clocks(given: Deadlines | Mapping[str, float] | None) -> Deadlines:
    if isinstance(given, Deadlines):
        return given
    try:
        return Deadlines(**(given or {}))
    except TypeError as error:
        raise ConfigError(f"deadlines: {error}") from None
