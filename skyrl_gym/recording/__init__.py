"""Recorded answers of tools and policies: run once against the world, then again without it."""

from skyrl_gym.recording.recording import Mode, Recording
from skyrl_gym.recording.tools import ToolRecorder
from skyrl_gym.recording.wrapper import RecordTools

__all__ = ["Mode", "RecordTools", "Recording", "ToolRecorder"]
