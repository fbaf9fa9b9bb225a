"""The live page: a run, or two side by side, from a small web server on this machine."""

from skyrl_gym.evaluate.live.server import ViewServer
from skyrl_gym.evaluate.live.site import Site

__all__ = ["Site", "ViewServer"]
