"""The HTML report of a run."""

from skyrl_gym.evaluate.report.write import write_report

__all__ = ["write_report"]
