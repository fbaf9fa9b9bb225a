"""Importance weights and the measured mismatch."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skyrl_gym.errors import ConfigError
from skyrl_gym.trainer.corrections import Mismatch, importance_weights, mismatch

LOG = torch.tensor([[0.0, math.log(4), math.log(0.5)], [math.log(0.5), math.log(0.5), 0.0]])
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("none", [[1, 1, 1], [1, 1, 1]]),
        ("token_truncate", [[1, 3, 0.5], [0.5, 0.5, 1]]),
        ("token_mask", [[1, 0, 0.5], [0.5, 0.5, 1]]),
        ("sequence_truncate", [[2, 2, 2], [0.25, 0.25, 0.25]]),
        ("sequence_mask", [[2, 2, 2], [0.25, 0.25, 0.25]]),
    ],
)
def test_weights_by_hand(kind: Any, expected: list[list[float]]) -> None:
    found = importance_weights(LOG, MASK, kind, clip=3.0)
    assert torch.allclose(found * MASK, torch.tensor(expected, dtype=torch.float) * MASK)


def test_a_sequence_above_the_clip_is_truncated_or_left_out() -> None:
    assert importance_weights(LOG, MASK, "sequence_truncate", clip=1.5)[0].tolist() == [1.5] * 3
    assert importance_weights(LOG, MASK, "sequence_mask", clip=1.5)[0].tolist() == [0.0] * 3


def test_what_stands_outside_the_mask_does_not_count() -> None:
    changed = LOG.clone()
    changed[1, 2] = 99.0
    for kind in ("token_truncate", "sequence_mask"):
        a, b = (importance_weights(x, MASK, kind, clip=3.0) * MASK for x in (LOG, changed))
        assert torch.equal(a, b)
    assert mismatch(LOG, MASK) == mismatch(changed, MASK)


@given(st.lists(st.floats(-500, 500), min_size=1, max_size=8))
def test_weights_and_mismatch_are_finite_and_never_negative(values: list[float]) -> None:
    ratio, mask = torch.tensor([values]), torch.ones(1, len(values))
    for kind in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"):
        found = importance_weights(ratio, mask, kind, clip=2.0)
        assert found.isfinite().all() and (found >= 0).all() and (found <= 2).all()
    measured = mismatch(ratio, mask)
    assert measured.kl >= -1e-4 and math.isfinite(measured.kl) and measured.largest >= 1


def test_parts_of_a_mismatch_add_up() -> None:
    whole = mismatch(LOG, MASK)
    parts = mismatch(LOG[:1], MASK[:1]) + mismatch(LOG[1:], MASK[1:])
    assert (whole.tokens, whole.largest) == (parts.tokens, parts.largest)
    assert whole.kl == pytest.approx(parts.kl)
    assert mismatch(LOG, MASK * 0) == Mismatch(0.0, 0.0, 1.0)


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ConfigError, match="unknown importance correction 'tis'"):
        importance_weights(LOG, MASK, "tis", clip=2.0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="give 1 or more; got 0"):
        importance_weights(LOG, MASK, "token_mask", clip=0.5)
