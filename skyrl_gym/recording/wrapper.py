"""Recording as a Gymnasium wrapper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from skyrl_gym.errors import ConfigError
from skyrl_gym.recording.recording import Recording

__all__ = ["RecordTools"]


class RecordTools(gym.Wrapper[Any, Any, Any, Any]):
    """Plays the tools of a `TextEnv` through a recording; `recording` counts its hits and misses.

    Args:
        env: a TextEnv, wrapped or not.
        recording: a Recording, or what `Recording.of` takes; several environments may share one.

    Raises:
        ConfigError: it is no TextEnv, or one that has a recording already.
    """

    def __init__(self, env: gym.Env[Any, Any], recording: Recording | str | Mapping[str, Any]) -> None:
        super().__init__(env)
        self.recording = Recording.of(recording)
        use = getattr(env.unwrapped, "use_recording", None)
        if use is None:
            raise ConfigError(f"RecordTools wraps environments of this package; got {env.unwrapped!r}")
        use(self.recording)
