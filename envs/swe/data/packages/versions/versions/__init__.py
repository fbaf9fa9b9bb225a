"""Semantic versions."""

from versions.requirement import Requirement
from versions.version import Version

__all__ = ["Requirement", "Version"]
