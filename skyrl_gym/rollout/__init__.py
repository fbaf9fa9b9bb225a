"""Rollouts: many episodes at once, each ending as one typed trajectory."""

from skyrl_gym.rollout.failures import FailurePolicy
from skyrl_gym.rollout.journal import Journal, read_journal
from skyrl_gym.rollout.metrics import MetricsLog, OnMetrics, RunMetrics, Stuck
from skyrl_gym.rollout.requests import Deadlines, RolloutLimits, RolloutRequest, requests_for
from skyrl_gym.rollout.runner import Runner
from skyrl_gym.rollout.trajectory import ErrorInfo, Trajectory, Transition, Turn

__all__ = [
    "Deadlines",
    "ErrorInfo",
    "FailurePolicy",
    "Journal",
    "MetricsLog",
    "OnMetrics",
    "RolloutLimits",
    "RolloutRequest",
    "RunMetrics",
    "Runner",
    "Stuck",
    "Trajectory",
    "Transition",
    "Turn",
    "read_journal",
    "requests_for",
]
