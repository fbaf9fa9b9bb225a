"""Many environments at once for training code that is not ours: in lock-step, or each at its own pace."""

from skyrl_gym.vector.env import TextVectorEnv
from skyrl_gym.vector.slot import Arrival

__all__ = ["Arrival", "TextVectorEnv"]
