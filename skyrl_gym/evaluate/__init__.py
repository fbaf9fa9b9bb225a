"""Evaluation: rollouts into run folders, statistics, tables and reports."""

from skyrl_gym.evaluate.evaluation import evaluate
from skyrl_gym.evaluate.metrics import Estimate, Summary, pass_at_k, summarise
from skyrl_gym.evaluate.runs import Run, open_run
from skyrl_gym.evaluate.table import summary_table

__all__ = ["Estimate", "Run", "Summary", "evaluate", "open_run", "pass_at_k", "summarise", "summary_table"]
