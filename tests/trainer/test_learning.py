"""A model from scratch learns from real rollouts: the loss points uphill, and downhill with rewards turned round."""

from statistics import fmean
from typing import Any

import pytest

from benchmarks.miniature import Setup, learn

pytestmark = pytest.mark.filterwarnings("default::FutureWarning")
STEPS = 16


@pytest.mark.parametrize(
    ("staleness", "settings"),
    [
        (0, {"loss_type": "dapo", "advantage": "group"}),
        (0, {"loss_type": "dr_grpo", "advantage": "leave_one_out", "turn_discount": 1.0}),
        (1, {"loss_type": "dapo", "advantage": "leave_one_out", "importance_correction": "token_truncate"}),
    ],
    ids=["group", "by turn", "asynchronous"],
)
def test_the_reward_goes_up(staleness: int, settings: dict[str, Any]) -> None:
    learned = learn(Setup(train=settings, steps=STEPS, staleness=staleness))
    assert len(learned.curve) == STEPS
    assert fmean(learned.curve[-4:]) > fmean(learned.curve[:3]) + 0.25, learned
    assert learned.after > learned.before + 0.25, learned


def test_turned_round_it_goes_the_other_way() -> None:
    learned = learn(Setup(env={"sign": -1.0}, train={"loss_type": "dapo", "advantage": "group"}, steps=STEPS))
    letters = [-value for value in learned.curve]
    assert fmean(letters[-4:]) < fmean(letters[:3]) - 0.25, letters


def test_episodes_that_break_are_left_out_and_learning_goes_on() -> None:
    told = learn(Setup(env={"broken": 3}, train={"advantage": "leave_one_out"}, steps=STEPS))
    assert told.after > told.before + 0.25, told
