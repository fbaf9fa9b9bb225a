"""Evaluation: rollouts into run folders, statistics, tables and reports."""

from skyrl_gym.evaluate.estimates import Estimate, pass_at_k
from skyrl_gym.evaluate.evaluation import evaluate
from skyrl_gym.evaluate.metrics import Summary, TaskScore, difference, summarise
from skyrl_gym.evaluate.runs import Run, open_run
from skyrl_gym.evaluate.table import summary_table

__all__ = [
    "Estimate",
    "Run",
    "Summary",
    "TaskScore",
    "difference",
    "evaluate",
    "open_run",
    "pass_at_k",
    "summarise",
    "summary_table",
]
