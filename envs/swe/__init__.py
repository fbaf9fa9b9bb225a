"""Repairing bugs in Python repositories."""

from skyrl_gym.envs.swe.env import SweEnv

__all__ = ["SweEnv"]
