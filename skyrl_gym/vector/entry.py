"""Where `gymnasium.make_vec` finds the vector of each registered environment.

Gymnasium calls a vector's entry point with the settings alone. So this module has, for each class of environments, an
attribute of the class's dotted name: "skyrl_gym.vector.entry:skyrl_gym.envs.memory.env.MemoryEnv".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode

from skyrl_gym.registration import make_of_class
from skyrl_gym.rollout import Deadlines
from skyrl_gym.vector.env import TextVectorEnv

if TYPE_CHECKING:
    from skyrl_gym.env import TextEnv

__all__ = ["vector_of"]


def vector_of(
    cls: type[TextEnv],
    *,
    num_envs: int,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    deadlines: Deadlines | Mapping[str, float] | None = None,
    **settings: Any,
) -> TextVectorEnv:
    """A vector of `num_envs` environments of a class, all with the same settings.

    Raises:
        ConfigError: an unknown setting (the nearest known one is named), or a value that is not taken.
    """
    make = partial(make_of_class, cls, **settings)
    return TextVectorEnv([make] * num_envs, autoreset_mode=autoreset_mode, deadlines=deadlines)


def __getattr__(name: str) -> Callable[..., TextVectorEnv]:
    module, dot, cls = name.rpartition(".")
    if not dot:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return partial(vector_of, cast("type[TextEnv]", load_env_creator(f"{module}:{cls}")))
