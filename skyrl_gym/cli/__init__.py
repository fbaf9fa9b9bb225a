"""The `skyrl` command: one module a verb."""

from skyrl_gym.cli.app import app, main

__all__ = ["app", "main"]
