"""Sampled under one distribution, trained under another: how far apart they are, and weights that make up for it.

All tensors are (rows, length); `mask` is 1 on sampled tokens, and what stands elsewhere is ignored. Log ratios
are those of the training model's probability to the sampler's, which is what was recorded when a token was drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch

from skyrl_gym.errors import ConfigError

__all__ = ["Correction", "Mismatch", "importance_weights", "mismatch"]

Correction: TypeAlias = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
EXPONENT = 20.0  # larger log ratios are cut to it, so that no ratio is infinite


def importance_weights(log_ratio: torch.Tensor, mask: torch.Tensor, kind: Correction, clip: float) -> torch.Tensor:
    """Weights for the tokens' losses, (rows, length), without gradient.

    `token_*`: each token by its own ratio. `sequence_*`: all tokens of a row by the product of their ratios,
    unbiased and, for long rows, of large variance. `*_truncate`: a ratio above `clip` becomes `clip`.
    `*_mask`: what has a ratio above `clip` is left out.

    Raises:
        ConfigError: an unknown kind, or a clip below 1.
    """
    if kind not in get_args(Correction):
        raise ConfigError(f"unknown importance correction {kind!r}; known: {', '.join(get_args(Correction))}")
    if clip < 1:
        raise ConfigError(f"importance_clip bounds a ratio that is 1 on policy: give 1 or more; got {clip:g}")
    if kind == "none":
        return torch.ones_like(log_ratio)
    level, _, what = kind.partition("_")
    log_weight = log_ratio.detach() * mask
    if level == "sequence":
        log_weight = log_weight.sum(-1, keepdim=True).expand_as(log_ratio)
    weight = log_weight.clamp(-EXPONENT, EXPONENT).exp()
    return weight.clamp(max=clip) if what == "truncate" else weight * (weight <= clip)


@dataclass(frozen=True)
class Mismatch:
    """How far sampler and trainer are apart on some sampled tokens, as sums, so that parts can be added.

    `kl` sums the unbiased, never negative estimate r - 1 - log r of KL(sampler || trainer), r the ratio;
    `largest` is the largest ratio, or that of the reciprocals if larger.
    """

    tokens: float
    kl: float
    largest: float

    def __add__(self, other: Mismatch) -> Mismatch:
        return Mismatch(self.tokens + other.tokens, self.kl + other.kl, max(self.largest, other.largest))


def mismatch(log_ratio: torch.Tensor, mask: torch.Tensor) -> Mismatch:
    """The mismatch on the masked tokens."""
    kept = log_ratio.detach().float()[mask.bool()].clamp(-EXPONENT, EXPONENT)
    if not kept.numel():
        return Mismatch(0.0, 0.0, 1.0)
    return Mismatch(kept.numel(), float((kept.exp() - 1 - kept).sum()), float(kept.abs().max().exp()))
