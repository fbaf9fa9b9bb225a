"""Endings and the exceptions behind them."""

import inspect

import pytest

from skyrl_gym import errors
from skyrl_gym.errors import InfraError, SkyRLError, StopReason, stop_reason_of


def test_every_exception_of_the_tree_is_drawn_and_exported() -> None:
    classes = {n for n, c in vars(errors).items() if inspect.isclass(c) and issubclass(c, SkyRLError)}
    assert classes <= set(errors.__all__)
    assert all(name in (errors.__doc__ or "") for name in classes)


@pytest.mark.parametrize("reason", StopReason)
def test_a_valid_ending_is_graded_and_never_retried(reason: StopReason) -> None:
    assert reason.valid == reason.grade
    assert not (reason.valid and reason.retry)


@pytest.mark.parametrize(
    "error", [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, InfraError)]
)
def test_infrastructure_failures_are_retried_and_never_scored(error: type[InfraError]) -> None:
    reason = stop_reason_of(error("x"))
    assert reason.retry
    assert not reason.valid


def test_a_subclass_of_a_listed_error_ends_like_its_parent() -> None:
    class ServerBusy(errors.PolicyTimeout):
        pass

    assert stop_reason_of(ServerBusy("x")) is StopReason.POLICY_TIMEOUT


def test_a_bare_timeout_error_is_a_bug_and_not_one_of_our_clocks() -> None:
    assert stop_reason_of(TimeoutError()) is StopReason.CRASH
