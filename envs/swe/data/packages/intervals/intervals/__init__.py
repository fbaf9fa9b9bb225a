"""Closed intervals of numbers, and sets of them."""

from intervals.core import Interval, IntervalSet

__all__ = ["Interval", "IntervalSet"]
