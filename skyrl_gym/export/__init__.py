"""Bridges: a run's trajectories in the form that other trainers and data tools read."""

from skyrl_gym.export.chat import sft_rows, sharegpt_rows
from skyrl_gym.export.files import FORMATS, Exported, export_run
from skyrl_gym.export.selection import Selection, Sequence
from skyrl_gym.export.skyrl_train import skyrl_train_output
from skyrl_gym.export.table import hf_rows
from skyrl_gym.export.tinker import tinker_rows
from skyrl_gym.export.trl import trl_rows
from skyrl_gym.export.verifiers import verifiers_rows
from skyrl_gym.export.verl import verl_batch

__all__ = [
    "FORMATS",
    "Exported",
    "Selection",
    "Sequence",
    "export_run",
    "hf_rows",
    "sft_rows",
    "sharegpt_rows",
    "skyrl_train_output",
    "tinker_rows",
    "trl_rows",
    "verifiers_rows",
    "verl_batch",
]
