"""Long documents read chunk by chunk with a bounded memory."""

from skyrl_gym.envs.memory.env import MemoryEnv

__all__ = ["MemoryEnv"]
