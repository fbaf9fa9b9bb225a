"""Environments and models over HTTP: an environment server and its client, and a gateway that records agents.

The client needs nothing but the core install; the servers need the extra `serve`.
"""

from skyrl_gym.serve.client import RemoteEnv

__all__ = ["RemoteEnv"]
