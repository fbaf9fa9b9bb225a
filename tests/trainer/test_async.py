"""Rollouts that go on while the trainer steps: in order, within the staleness bound, with true versions."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyrl_gym import StopReason, TaskSet, TextEnv, finish, tool
from skyrl_gym.background import BackgroundLoop
from skyrl_gym.chat import Renderer
from skyrl_gym.chat.testing import tiny_tokenizer
from skyrl_gym.errors import ConfigError, RunAborted
from skyrl_gym.policy import Completion, Prompt, Sampling
from skyrl_gym.rollout import Deadlines, Journal, RolloutLimits, Runner, Trajectory, read_journal
from skyrl_gym.trainer.async_ import AsyncSource
from skyrl_gym.trainer.resume import Finished
from skyrl_gym.trainer.samples import samples_of
from skyrl_gym.trainer.source import Share, SyncSource
from skyrl_gym.trainer.stream import Ingredient, TaskStream

CALL = '<tool_call>\n{"name": "go", "arguments": {}}\n</tool_call>'


class ThreeTurns(TextEnv):
    """Two calls, then an answer."""

    def load_tasks(self, split: str) -> TaskSet:
        return TaskSet.from_rows([{"id": f"t{i}"} for i in range(5)])

    def setup(self, task: Any) -> str:
        self.calls = 0
        return f"Begin {task.id}, which is told only here."

    @tool
    def go(self) -> Any:
        """Goes on."""
        self.calls += 1
        return finish() if self.calls == 3 else "on"

    def grade(self) -> float:
        return 1.0


class Versioned:
    """Answers after a while with a call; its token count tells which version answered."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.name = "versioned"
        self.renderer = Renderer(tiny_tokenizer("chatml_tools"))
        self.version = 0
        self.asked: list[tuple[float, int]] = []
        self._delay_s = delay_s

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        version = self.version
        self.asked.append((time.monotonic(), version))
        await asyncio.sleep(self._delay_s)
        ids = tuple(self.renderer.tokenizer.encode(CALL, add_special_tokens=False)) + (2,) * 1
        return Completion(CALL, "stop", ids, tuple(-1.0 for _ in ids), version)

    def load_weights(self, weights: Any, version: int) -> None:
        self.version = version

    async def aclose(self) -> None:
        pass


@pytest.fixture
def loop() -> Iterator[BackgroundLoop]:
    found = BackgroundLoop("test")
    yield found
    found.close()


def stream() -> TaskStream:
    return TaskStream([Ingredient("three", ThreeTurns().tasks)], 2)


def runner(policy: Any, make: Any = lambda env_id, **_: ThreeTurns()) -> Runner:
    return Runner(policy, limits=RolloutLimits(live=8, setup=8), make=make)


def steps(source: Any, count: int, groups: int = 2, pause_s: float = 0.0) -> list[list[Trajectory]]:
    found = []
    for version in range(count):
        source.sync({}, version)
        found.append(source.draw(groups))
        time.sleep(pause_s)
    source.close()
    return found


def versions(trajectory: Trajectory) -> list[int]:
    return [v for sample in samples_of(trajectory, 0, 0.0) for v in sample.versions]


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_tokens_are_never_older_than_the_bound_and_their_versions_never_fall(
    loop: BackgroundLoop, staleness: int
) -> None:
    source = AsyncSource(stream(), 4, 2, staleness, runner(policy := Versioned(0.004)), policy, loop)
    for now, trajectories in enumerate(steps(source, 8, pause_s=0.01)):
        for trajectory in trajectories:
            seen = versions(trajectory)
            assert seen == sorted(seen)
            assert now - staleness <= seen[0] <= seen[-1] <= now


def test_weights_that_come_in_the_middle_of_an_episode_sample_its_later_turns(loop: BackgroundLoop) -> None:
    source = AsyncSource(stream(), 4, 2, 2, runner(policy := Versioned(0.02)), policy, loop)
    drawn = [t for some in steps(source, 8, pause_s=0.01) for t in some]
    spans = {(versions(t)[0], versions(t)[-1]) for t in drawn}
    assert any(first < last for first, last in spans)


def test_groups_come_whole_in_order_and_with_the_prompts_of_synchronous_training(loop: BackgroundLoop) -> None:
    policy = Versioned()
    ahead = steps(AsyncSource(stream(), 4, 2, 2, runner(policy), policy, loop), 5)
    in_turn = steps(SyncSource(stream(), 4, runner(policy), policy, loop), 5)
    for a, b in zip(ahead, in_turn, strict=True):
        assert [t.sample for t in a] == [t.sample for t in b]
        assert [list(t.prompts()) for t in a] == [list(t.prompts()) for t in b]
        assert [t.opening for t in a] == [t.opening for t in b]
    assert [t.sample for some in ahead for t in some] == list(range(5 * 2 * 4))


def test_rollouts_go_on_while_the_trainer_steps(loop: BackgroundLoop) -> None:
    source = AsyncSource(stream(), 4, 2, 1, runner(policy := Versioned(0.005)), policy, loop)
    source.sync({}, 0)
    source.draw(2)
    asked = len(policy.asked)
    deadline = time.monotonic() + 20
    while len(policy.asked) == asked and time.monotonic() < deadline:
        time.sleep(0.01)  # the trainer's step
    source.close()
    assert len(policy.asked) > asked


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 2))
def test_the_bound_holds_when_steps_draw_more_than_their_share(rounds: list[int], staleness: int) -> None:
    loop = BackgroundLoop("test")
    source = AsyncSource(stream(), 2, 2, staleness, runner(policy := Versioned()), policy, loop)
    for now, extra in enumerate(rounds):
        source.sync({}, now)
        for trajectory in [*source.draw(2), *source.draw(extra)]:
            assert now - staleness <= versions(trajectory)[0]
    source.close()
    loop.close()


def test_processes_share_out_whole_groups(loop: BackgroundLoop) -> None:
    found: defaultdict[str, set[int]] = defaultdict(set)
    for rank in range(2):
        source = AsyncSource(stream(), 4, 2, 1, runner(policy := Versioned()), policy, loop, Share(rank, 2))
        for trajectory in (t for some in steps(source, 3) for t in some):
            found[trajectory.group].add(rank)
    assert len(found) == 6 and all(len(ranks) == 1 for ranks in found.values())
    with pytest.raises(ConfigError, match=r"prompts_per_step, 2, must be a multiple of the processes, 3"):
        AsyncSource(stream(), 4, 2, 1, runner(policy), policy, loop, Share(0, 3))


def test_finished_trajectories_are_not_played_again(loop: BackgroundLoop) -> None:
    policy = Versioned()
    first = steps(SyncSource(stream(), 4, runner(policy), policy, loop), 2)
    policy.asked.clear()
    kept = [t for some in first for t in some][:-1]
    source = AsyncSource(stream(), 4, 2, 1, runner(policy), policy, loop, finished=Finished(kept))
    source.sync({}, 0)
    again = source.draw(2)
    source.close()
    assert again == first[0]


def test_a_training_that_a_bug_ended_goes_on_once_the_bug_is_gone(loop: BackgroundLoop, tmp_path: Path) -> None:
    class Broken(ThreeTurns):
        def setup(self, task: Any) -> str:
            raise ZeroDivisionError("no")

    def step(journal: Journal, env: type[ThreeTurns], kept: list[Trajectory]) -> list[Trajectory]:
        player = Runner(policy := Versioned(), journal=journal, make=lambda env_id, **_: env())
        return steps(AsyncSource(stream(), 4, 2, 1, player, policy, loop, finished=Finished(kept)), 1)[0]

    with Journal(tmp_path / "broken.jsonl") as journal, pytest.raises(RunAborted):
        step(journal, Broken, [])
    kept = list(read_journal(tmp_path / "broken.jsonl"))
    assert any(trajectory.stop_reason is StopReason.CRASH for trajectory in kept)
    with Journal(tmp_path / "mended.jsonl") as journal:
        found = step(journal, ThreeTurns, kept)
    assert len(found) == 8 and all(trajectory.valid for trajectory in found)


@pytest.mark.parametrize("ahead", [False, True], ids=["by turns", "ahead"])
def test_the_spare_of_a_group_that_had_closed_is_not_played_after_a_resume(
    loop: BackgroundLoop, tmp_path: Path, ahead: bool
) -> None:
    """The run was stopped before the spare of its first group had ended, and in the middle of its second group."""
    limits = RolloutLimits(live=1, setup=1, close_groups_at=3)

    def two_groups(journal: Path, kept: list[Trajectory]) -> tuple[list[Trajectory], list[Trajectory]]:
        with Journal(journal) as held:
            policy, finished = Versioned(), Finished(kept)
            player = Runner(policy, limits=limits, journal=held, make=lambda env_id, **_: ThreeTurns())
            source = (
                AsyncSource(stream(), 4, 2, 0, player, policy, loop, finished=finished)
                if ahead
                else SyncSource(stream(), 4, player, policy, loop, finished=finished)
            )
            found = steps(source, 1)[0]
        return found, list(read_journal(journal))

    whole, _ = two_groups(tmp_path / "whole.jsonl", [])
    assert [t.sample for t in whole if t.stop_reason is StopReason.SURPLUS] == [3, 7]
    kept = [t for t in whole if t.sample not in (3, 6, 7)]
    again, journal = two_groups(tmp_path / "again.jsonl", kept)
    assert [(t.key, t.stop_reason, t.reward) for t in again] == [(t.key, t.stop_reason, t.reward) for t in whole]
    assert sorted((t.sample, t.stop_reason) for t in journal) == [
        (3, StopReason.SURPLUS), (6, StopReason.DONE), (7, StopReason.SURPLUS),
    ]  # fmt: skip


def test_a_bug_in_an_environment_ends_the_training_and_is_named(loop: BackgroundLoop) -> None:
    class Broken(ThreeTurns):
        def setup(self, task: Any) -> str:
            raise ZeroDivisionError("no")

    source = AsyncSource(stream(), 4, 2, 1, runner(policy := Versioned(), lambda e, **_: Broken()), policy, loop)
    source.sync({}, 0)
    with pytest.raises(RunAborted, match="ZeroDivisionError"):
        source.draw(2)
    with pytest.raises(RunAborted, match="ZeroDivisionError"):
        source.draw(2)
    source.close()


def test_a_bug_ends_the_wait_for_groups_that_had_not_begun(loop: BackgroundLoop) -> None:
    class Broken(ThreeTurns):
        def setup(self, task: Any) -> str:
            raise ZeroDivisionError("no")

    one_by_one = Runner(policy := Versioned(), limits=RolloutLimits.bounded(1), make=lambda e, **_: Broken())
    source = AsyncSource(stream(), 1, 16, 1, one_by_one, policy, loop)
    source.sync({}, 0)
    with pytest.raises(RunAborted, match="ZeroDivisionError"):
        source.draw(16)
    source.close()


def test_a_run_whose_time_is_up_ends_the_training(loop: BackgroundLoop) -> None:
    slow = Runner(policy := Versioned(0.05), make=lambda e, **_: ThreeTurns(), deadlines=Deadlines(run_s=0.2))
    source = AsyncSource(stream(), 4, 2, 1, slow, policy, loop)
    source.sync({}, 0)
    with pytest.raises(RunAborted, match="run_s"):
        for _ in range(100):
            source.draw(2)
            source.sync({}, 0)
    source.close()


def test_an_infrastructure_failure_is_handed_out_like_any_trajectory(loop: BackgroundLoop) -> None:
    from skyrl_gym.errors import EnvError

    class Down(ThreeTurns):
        def setup(self, task: Any) -> str:
            raise EnvError("down")

    limits = RolloutLimits(live=8, setup=8, retries=0)
    policy = Versioned()
    down = Runner(policy, limits=limits, make=lambda e, **_: Down())
    source = AsyncSource(stream(), 4, 2, 1, down, policy, loop)
    source.sync({}, 0)
    found = source.draw(2)
    source.close()
    assert {t.stop_reason for t in found} == {StopReason.ENV_ERROR} and len(found) == 8
