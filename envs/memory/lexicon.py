"""The word lists of `lexicon.yaml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import cast

import yaml

__all__ = ["LEXICON"]

LEXICON = cast(
    Mapping[str, Sequence[str]], yaml.safe_load((files("skyrl_gym.envs.memory") / "lexicon.yaml").read_text())
)
