"""Cron expressions."""

from cronline.expression import CronExpression

__all__ = ["CronExpression"]
