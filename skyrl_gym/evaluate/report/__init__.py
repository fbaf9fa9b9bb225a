"""The HTML report of a run."""

from pathlib import Path


def write_report(run_dir: str | Path) -> Path:
    """later"""
    return Path(run_dir) / "report.html"
