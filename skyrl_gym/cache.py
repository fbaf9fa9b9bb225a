"""Where downloads and conversions are kept."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_dir"]


def cache_dir() -> Path:
    """`$SKYRL_CACHE`, else `~/.cache/skyrl_gym`.

    As root it is /var/cache/skyrl_gym: sandboxes then run as another user, who can't look into root's home.
    """
    if given := os.environ.get("SKYRL_CACHE"):
        return Path(given)
    return Path("/var/cache/skyrl_gym") if os.geteuid() == 0 else Path.home() / ".cache" / "skyrl_gym"
