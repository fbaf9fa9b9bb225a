"""Seeds, caps on tokens, cost and time, and what is tried again."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym import TaskSet, ToolCall
from skyrl_gym.errors import ConfigError
from skyrl_gym.evaluate import Summary, evaluate, open_run
from skyrl_gym.evaluate.known import KnownPlayer
from skyrl_gym.evaluate.spending import Caps, Prices, metered, read_spending
from skyrl_gym.messages import assistant
from skyrl_gym.policy import Completion, PolicyLoad, Prompt, ReportsLoad, Sampling
from skyrl_gym.rollout import RolloutLimits

ONE = RolloutLimits(live=1, retries=0)


class Counted:
    """Answers at a known price: 100 tokens in, 10 out."""

    renderer = None

    def __init__(self, seconds: float = 0.0) -> None:
        self.name = "counted"
        self.seconds = seconds
        self.seeds: list[int | None] = []

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        self.seeds.append(sampling.seed)
        await asyncio.sleep(self.seconds)
        message = assistant(None, ToolCall("answer", {"word": "yes"}))
        return Completion("", message=message, usage=(100, 10))

    async def aclose(self) -> None:
        pass


class Busy(Counted):
    async def current_load(self) -> PolicyLoad:
        return PolicyLoad(1, 2)


def tasks(count: int, **fields: Any) -> TaskSet:
    rows = [{"id": f"t{i}", "word": "yes" if i % 2 else "no", "hint": "a hint", **fields} for i in range(count)]
    return TaskSet.from_rows(rows)


def run(env_id: str, policy: Any, of: TaskSet, out: Path, samples: int = 1, **more: Any) -> Summary:
    settings: dict[str, Any] = {"limits": ONE, **more}
    return asyncio.run(evaluate(env_id, policy, tasks=of, samples=samples, out_dir=out, **settings))


def test_what_is_spent_is_counted_and_has_a_price(guess: str, tmp_path: Path) -> None:
    summary = run(guess, Counted(), tasks(4), tmp_path / "run", prices=Prices(2.0, 30.0))
    assert summary.spending is not None
    spent = summary.spending
    assert (spent.completions, spent.prompt_tokens, spent.sampled_tokens) == (4, 400, 40)
    assert summary.spending.cost == pytest.approx((400 * 2 + 40 * 30) / 1e6)
    assert read_spending(tmp_path / "run") == summary.spending
    assert Summary.from_json(json.loads(json.dumps(summary.to_json()))) == summary


def test_a_cap_on_tokens_stops_and_says_so_and_the_folder_goes_on(guess: str, tmp_path: Path) -> None:
    first = run(guess, Counted(), tasks(10), tmp_path / "run", caps=Caps(tokens=330))
    assert (first.judged, first.not_run, first.wanted) == (2, 8, 10) or (first.judged, first.not_run) == (3, 7)
    assert first.stopped == "330 tokens are used, the cap is 330"
    again = Counted()
    second = run(guess, again, tasks(10), tmp_path / "run", caps=Caps(tokens=330))
    assert not again.seeds and second.judged == first.judged, "the cap holds over resumptions"
    last = run(guess, Counted(), tasks(10), tmp_path / "run")
    assert (last.judged, last.not_run, last.stopped) == (10, 0, "")
    assert last.spending is not None and last.spending.tokens >= 1_100


def test_a_cap_on_the_cost_needs_prices(guess: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs the prices"):
        run(guess, Counted(), tasks(1), tmp_path / "no", caps=Caps(cost=1.0))
    summary = run(guess, Counted(), tasks(10), tmp_path / "run", caps=Caps(cost=0.0002), prices=Prices(1.0, 0.0))
    assert 0 < summary.not_run < 10 and "the cap is 0.0002" in summary.stopped


def test_a_limit_on_time_stops_what_is_under_way(guess: str, tmp_path: Path) -> None:
    began = time.monotonic()
    summary = run(guess, Counted(seconds=60), tasks(3), tmp_path / "run", caps=Caps(seconds=0.5))
    assert time.monotonic() - began < 30
    assert (summary.judged, summary.not_run, summary.starved) == (0, 3, True)
    assert summary.stopped == "the limit of 0.5 s is over"


def test_several_seeds_are_sampled_each_for_itself(guess: str, tmp_path: Path) -> None:
    policy = Counted()
    summary = run(guess, policy, tasks(4), tmp_path / "run", 2, seeds=(3, 5, 8))
    assert len(set(policy.seeds)) == 24 and summary.judged == 24
    assert summary.by_seed == {"3": 0.5, "5": 0.5, "8": 0.5}
    assert sorted(summary.pass_at) == [1, 2, 4]
    alone = Counted()
    run(guess, alone, tasks(4), tmp_path / "alone", 2, sampling=Sampling(seed=3))
    assert set(alone.seeds) <= set(policy.seeds), "the first seed of several is what it is alone"


def test_a_thousand_draws_of_seeds_are_distinct(guess: str, tmp_path: Path) -> None:
    policy = Counted()
    run(guess, policy, tasks(1_000), tmp_path / "run", sampling=Sampling(seed=0), limits=RolloutLimits(live=32))
    assert len(set(policy.seeds)) > 990


def test_what_was_excluded_stays_where_that_is_asked_for(guess: str, tmp_path: Path) -> None:
    outage = tmp_path / "outage"
    outage.touch()
    rows = [*tasks(2), *tasks(1, id="lost", lost_while=str(outage))]
    of = TaskSet.from_rows([task.data for task in rows])
    assert run(guess, Counted(), of, tmp_path / "run").excluded == 1
    outage.unlink()
    policy = Counted()
    kept = run(guess, policy, of, tmp_path / "run", retry_excluded=False)
    assert not policy.seeds and (kept.judged, kept.excluded) == (2, 1)
    assert run(guess, policy, of, tmp_path / "run").judged == 3


def test_gold_plays_in_the_policys_place(guess: str, tmp_path: Path) -> None:
    summary = run(guess, KnownPlayer(), tasks(4), tmp_path / "run", 2, limits=RolloutLimits(live=3))
    assert summary.reward.value == 1.0 and summary.policy == "gold" and summary.judged == 8
    assert run(guess, KnownPlayer("nothing"), tasks(4), tmp_path / "nothing").reward.value == 0.0
    assert len(list(open_run(tmp_path / "run").trajectories())) == 8
    with pytest.raises(ConfigError, match=r"declares no probe 'golf'; it has nothing, gold, hint"):
        run(guess, KnownPlayer("golf"), tasks(1), tmp_path / "none")


def test_a_policy_that_tells_its_load_still_does(tmp_path: Path) -> None:
    from skyrl_gym.evaluate.spending import Meter

    wrapped = metered(Busy(), Meter(tmp_path))
    assert isinstance(wrapped, ReportsLoad) and asyncio.run(wrapped.current_load()) == PolicyLoad(1, 2)
    assert not isinstance(metered(Counted(), Meter(tmp_path)), ReportsLoad)
