"""The numbers of a training step, from the outcomes of its whole batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import fmean, stdev

from skyrl_gym.trainer.outcomes import Outcome, groups_with_signal

__all__ = ["MOST_TOOLS", "batch_metrics"]

MOST_TOOLS = 16  # a model can invent any number of tool names; the most frequent are told apart


def batch_metrics(outcomes: Sequence[Outcome], version: int) -> dict[str, float]:
    """Numbers by name; those of one environment of several stand under `env/<id>/`.

    Args:
        outcomes: of all processes.
        version: of the policy that is trained now: what staleness is counted from.
    """
    found = _rewards(outcomes)
    groups = {outcome.group for outcome in outcomes}
    found |= {
        "groups": len(groups),
        "groups_with_signal": len(groups_with_signal(outcomes)),
        "masked": sum(outcome.returns is not None and not outcome.trained for outcome in outcomes),
        "sampled_tokens": sum(outcome.sampled_tokens for outcome in outcomes),
    }
    found |= _tools(outcomes) | _staleness(outcomes, version)
    for name in ("policy", "tools"):
        found[f"seconds/{name}"] = fmean(outcome.seconds.get(name, 0.0) for outcome in outcomes)
    for reason, count in Counter(outcome.ending.value for outcome in outcomes).items():
        found[f"stop/{reason}"] = count / len(outcomes)
    by_env = [(env_id, list(some)) for env_id, some in groupby(sorted(outcomes, key=_env_id), _env_id)]
    if len(by_env) > 1:
        for env_id, some in by_env:
            found |= {f"env/{env_id}/{name}": value for name, value in _rewards(some).items()}
            found[f"env/{env_id}/share"] = len(some) / len(outcomes)
    return found


def _env_id(outcome: Outcome) -> str:
    return outcome.env_id


def _rewards(outcomes: Iterable[Outcome]) -> dict[str, float]:
    some = list(outcomes)
    rewards = [outcome.reward for outcome in some if outcome.reward is not None]
    return {
        "reward": fmean(rewards) if rewards else float("nan"),
        "reward_std": stdev(rewards) if len(rewards) > 1 else 0.0,
        "excluded": len(some) - len(rewards),
        "turns": fmean(outcome.turns for outcome in some),
        "tokens": fmean(outcome.sampled_tokens for outcome in some),
    }


def _tools(outcomes: Sequence[Outcome]) -> dict[str, float]:
    turns = sum(outcome.turns for outcome in outcomes)
    calls: Counter[str] = Counter()
    for outcome in outcomes:
        calls.update(outcome.tool_calls)
    found = {
        "tools/calls": calls.total() / len(outcomes),
        "tools/errors": sum(outcome.tool_errors for outcome in outcomes) / max(1, calls.total()),
        "tools/invalid": sum(outcome.invalid_turns for outcome in outcomes) / max(1, turns),
    }
    return found | {f"tool/{name}": count / len(outcomes) for name, count in calls.most_common(MOST_TOOLS)}


def _staleness(outcomes: Sequence[Outcome], version: int) -> dict[str, float]:
    ages = [version - outcome.versions[0] for outcome in outcomes if outcome.versions]
    spans = [outcome.versions[1] - outcome.versions[0] for outcome in outcomes if outcome.versions]
    if not ages:
        return {}
    return {"staleness/mean": fmean(ages), "staleness/max": max(ages), "staleness/span": fmean(spans)}
