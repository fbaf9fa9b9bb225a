"""N requests in, N typed trajectories out, nothing left behind."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skyrl_gym import Task, ToolCall
from skyrl_gym.errors import ConfigError, PolicyError, RunAborted, StopReason, TaskError, UserError
from skyrl_gym.policy import Completion, Prompt, Sampling, ScriptedPolicy
from skyrl_gym.rollout import Deadlines, Journal, RolloutLimits, RolloutRequest, Runner, Trajectory, read_journal

QUICK = Deadlines(setup_s=0.2, policy_s=0.2, episode_s=0.3, grade_s=0.2, teardown_s=0.2)
ONCE = RolloutLimits(live=4, setup=2, grade=2, retries=0)


def requests(rows: Iterable[dict[str, Any]]) -> list[RolloutRequest]:
    return [RolloutRequest("test", Task.from_row({"id": f"t{i}", **row}), f"t{i}") for i, row in enumerate(rows)]


def play(runner: Runner, rows: Iterable[dict[str, Any]]) -> list[Trajectory]:
    async def collect() -> list[Trajectory]:
        return [t async for t in runner.run(requests(rows))]

    return asyncio.run(collect())


def by_task(found: Iterable[Trajectory]) -> dict[str, Trajectory]:
    return {t.task_id: t for t in found}


def runner_for(env_class: Any, policy: Any, **kwargs: Any) -> Runner:
    return Runner(policy, make=lambda env_id, **_: env_class(), **{"limits": ONCE, "deadlines": QUICK, **kwargs})


def test_a_plain_episode(env_class: Any, player: Any) -> None:
    (found,) = play(runner_for(env_class, player), [{}])
    assert (found.stop_reason, found.reward, found.valid) == (StopReason.DONE, 1.0, True)
    assert [turn.message.tool_calls[0].name for turn in found.turns] == ["count", "done"]
    assert found.turns[0].observations[0].content == "one"
    assert set(found.seconds) == {"setup", "run", "grade"}
    assert Trajectory.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("stage", "fault", "ending"),
    [
        ("setup", "raise", StopReason.SETUP_ERROR),
        ("setup", "hang", StopReason.SETUP_TIMEOUT),
        ("run", "raise", StopReason.ENV_ERROR),
        ("run", "hang", StopReason.EPISODE_TIMEOUT),
        ("grade", "raise", StopReason.GRADE_ERROR),
        ("grade", "hang", StopReason.GRADE_TIMEOUT),
        ("teardown", "raise", StopReason.DONE),
        ("teardown", "hang", StopReason.DONE),
    ],
)
def test_a_fault_at_any_stage_ends_typed_and_touches_nobody_else(
    env_class: Any, player: Any, stage: str, fault: str, ending: StopReason
) -> None:
    started = time.perf_counter()
    found = by_task(play(runner_for(env_class, player), [{}, {"stage": stage, "fault": fault}, {}]))
    assert time.perf_counter() - started < 5
    assert found["t1"].stop_reason is ending
    assert (found["t1"].reward is None) == (not ending.valid)
    assert [found[name].reward for name in ("t0", "t2")] == [1.0, 1.0]
    assert env_class.opened == env_class.closed
    if not ending.valid:
        assert found["t1"].error is not None


def test_an_episode_out_of_time_is_graded_and_keeps_its_turns(env_class: Any) -> None:
    class Stalling(ScriptedPolicy):
        async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
            if len(prompt.messages) > 1:
                await asyncio.sleep(0.6)
            return await super().complete(prompt, sampling)

    policy = Stalling(lambda prompt: ToolCall("count"))
    runner = runner_for(env_class, policy, deadlines=Deadlines(policy_s=5, episode_s=0.2))
    (found,) = play(runner, [{"reward": 0.5}])
    assert (found.stop_reason, found.reward, len(found.turns)) == (StopReason.EPISODE_TIMEOUT, 0.5, 1)


def test_three_clocks_give_three_endings(env_class: Any, player: Any) -> None:
    class Never(ScriptedPolicy):
        async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
            await asyncio.sleep(60)
            raise AssertionError

    policy_clock = runner_for(env_class, Never([]), deadlines=Deadlines(policy_s=0.1))
    (found,) = play(policy_clock, [{}])
    assert found.stop_reason is StopReason.POLICY_TIMEOUT
    run_clock = runner_for(env_class, Never([]), deadlines=Deadlines(run_s=0.1))
    assert {t.stop_reason for t in play(run_clock, [{}] * 9)} == {StopReason.RUN_TIMEOUT}
    (found,) = play(runner_for(env_class, player), [{"stage": "run", "fault": "timeout_error"}])
    assert found.stop_reason is StopReason.DONE  # user code's own, told to the agent
    assert "raised TimeoutError: from user code" in str(found.turns[0].observations[0].content)
    assert env_class.live == 0


def test_infrastructure_failures_are_retried_with_a_fresh_environment(env_class: Any, player: Any) -> None:
    class Flaky(env_class):  # type: ignore[misc]
        tries = 0

        async def setup(self, task: Task) -> str:
            text = await super().setup(task)
            Flaky.tries += 1
            if Flaky.tries < 3:
                raise PolicyError("a server of the environment's is away")
            return str(text)

    (found,) = play(runner_for(Flaky, player, limits=RolloutLimits(live=1, retries=2)), [{}])
    assert (found.attempt, found.reward) == (2, 1.0)
    assert (Flaky.opened, Flaky.closed) == (3, 3)


def test_a_bug_is_journalled_everyone_is_accounted_for_and_the_run_raises(
    env_class: Any, player: Any, tmp_path: Path
) -> None:
    seen: list[Trajectory] = []

    async def collect(journal: Journal) -> None:
        rows = [{"stage": "run", "fault": "bug"}] + [{}] * 20
        async for trajectory in runner_for(env_class, player, journal=journal).run(requests(rows)):
            seen.append(trajectory)

    with Journal(tmp_path / "j.jsonl") as journal, pytest.raises(RunAborted, match="TypeError: planted bug"):
        asyncio.run(collect(journal))
    assert len(seen) == 21
    assert by_task(seen)["t0"].stop_reason is StopReason.CRASH
    assert "planted bug" in str(by_task(seen)["t0"].error)
    kept = list(read_journal(tmp_path / "j.jsonl"))
    assert "t0" in by_task(kept)
    assert all(t.opening for t in kept)  # what had begun is kept too, as far as it went
    assert Counter(t.key for t in kept).most_common(1)[0][1] == 1
    assert env_class.live == 0


def test_a_wrong_task_is_the_users_error_in_the_users_words(env_class: Any, player: Any) -> None:
    class Strict(env_class):  # type: ignore[misc]
        async def setup(self, task: Task) -> str:
            raise TaskError("task t0: field 'question' is missing")

    with pytest.raises(TaskError, match="'question' is missing"):
        play(runner_for(Strict, player), [{}])


def test_bounds_hold_and_requests_are_drawn_only_when_there_is_room(env_class: Any, player: Any) -> None:
    drawn = 0

    def endless() -> Any:
        nonlocal drawn
        for request in requests([{}] * 200):
            drawn += 1
            yield request

    async def take(count: int) -> None:
        async with aclosing(runner_for(env_class, player).run(endless())) as found:
            async for _ in found:
                count -= 1
                if not count:
                    break

    asyncio.run(take(10))
    assert drawn < 40
    assert env_class.most_live <= ONCE.live
    assert env_class.live == 0


def test_cancelling_the_run_frees_everything(env_class: Any) -> None:
    class Never(ScriptedPolicy):
        async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
            await asyncio.sleep(60)
            raise AssertionError

    async def cancel() -> None:
        async def collect() -> None:
            async for _ in runner_for(env_class, Never([]), deadlines=Deadlines()).run(requests([{}] * 9)):
                pass

        task = asyncio.create_task(collect())
        await asyncio.sleep(0.1)
        assert env_class.live == ONCE.live
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert env_class.live == 0
    assert env_class.opened == env_class.closed


def test_a_cut_completion_is_never_executed(env_class: Any) -> None:
    class Cut(ScriptedPolicy):
        async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
            return Completion('<tool_call>{"name": "done", "arguments": {}}</tool_call>', finish_reason="length")

    (found,) = play(runner_for(env_class, Cut([])), [{}])
    assert found.stop_reason is StopReason.LENGTH
    assert found.turns[0].observations == ()


def test_the_context_is_checked_before_the_policy_is_asked(env_class: Any) -> None:
    from skyrl_gym.chat import Renderer
    from skyrl_gym.chat.testing import tiny_tokenizer

    asked: list[tuple[int, int]] = []

    class Noting(ScriptedPolicy):
        async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
            asked.append((len(prompt.token_ids or ()), sampling.max_tokens))
            return await super().complete(prompt, sampling)

    policy = Noting(lambda prompt: ToolCall("count"), renderer=Renderer(tiny_tokenizer()))
    play(runner_for(env_class, policy), [{}])
    (first, most), (second, _), *_ = asked
    asked.clear()
    (found,) = play(runner_for(env_class, policy, limits=replace(ONCE, max_context=second)), [{}])
    assert asked == [(first, min(most, second - first))], "no room is left for a second answer"
    assert (found.stop_reason, found.reward, len(found.turns)) == (StopReason.CONTEXT_FULL, 1.0, 1)


def test_a_policy_that_only_emits_garbage_stops_at_the_cap(env_class: Any) -> None:
    (found,) = play(runner_for(env_class, ScriptedPolicy(lambda prompt: "<tool_call>{broken")), [{}])
    assert (found.stop_reason, len(found.turns)) == (StopReason.INVALID_CALLS, 3)


def test_a_script_that_ends_is_the_policys_failure(env_class: Any) -> None:
    (found,) = play(runner_for(env_class, ScriptedPolicy([ToolCall("count")])), [{}])
    assert found.stop_reason is StopReason.POLICY_ERROR
    assert len(found.turns) == 1


def test_a_full_disk_stops_the_run_in_one_line(env_class: Any, player: Any, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")

    class OnFullDisk(Journal):
        def append(self, *trajectories: Trajectory) -> None:
            with open("/dev/full", "wb", buffering=0) as disk:
                disk.write(b"x")

    with OnFullDisk(tmp_path / "j.jsonl") as journal, pytest.raises(UserError, match="No space left on device"):
        play(runner_for(env_class, player, journal=journal), [{}])


def test_a_seed_is_each_trajectorys_own_and_independent_of_the_schedule(env_class: Any) -> None:
    def seeds(live: int) -> dict[str, list[int | None]]:
        found: dict[str, list[int | None]] = {}

        class Noting(ScriptedPolicy):
            async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
                await asyncio.sleep(0)
                found.setdefault(str(prompt.messages[0].content), []).append(sampling.seed)
                return await super().complete(prompt, sampling)

        class Named(env_class):  # type: ignore[misc]
            async def setup(self, task: Task) -> str:
                await super().setup(task)
                return task.id

        policy = Noting(lambda prompt: ToolCall("count") if len(prompt.messages) == 1 else ToolCall("done"))
        limits = RolloutLimits(live=live, retries=0)
        play(runner_for(Named, policy, sampling=Sampling(seed=5), limits=limits), [{}] * 6)
        return found

    assert seeds(1) == seeds(6)
    assert len({seed for many in seeds(2).values() for seed in many}) == 12


def test_the_same_policy_gives_the_same_trajectory_byte_for_byte(env_class: Any, player: Any) -> None:
    def without_clocks(found: Trajectory) -> dict[str, Any]:
        data = found.to_json() | {"seconds": {}}
        return data | {"turns": [turn | {"seconds": {}} for turn in data["turns"]]}

    first, second = (play(runner_for(env_class, player), [{}])[0] for _ in range(2))
    assert without_clocks(first) == without_clocks(second)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.fixed_dictionaries(
            {"stage": st.sampled_from(["setup", "run", "grade", "none"]), "fault": st.sampled_from(["raise", "hang"])}
        ),
        max_size=12,
    ),
    st.integers(1, 5),
)
def test_any_mixture_of_faults_gives_exactly_n_outcomes_and_no_leak(
    env_class: Any, rows: list[dict[str, Any]], live: int
) -> None:
    class Fresh(env_class):  # type: ignore[misc]
        live = most_live = opened = closed = 0

    policy = ScriptedPolicy(lambda p: ToolCall("count") if len(p.messages) == 1 else ToolCall("done"))
    quick = Deadlines(setup_s=0.05, policy_s=1, episode_s=0.05, grade_s=0.05, teardown_s=1)
    limits = RolloutLimits(live=live, setup=2, grade=1, retries=0)
    found = play(runner_for(Fresh, policy, deadlines=quick, limits=limits), rows)
    assert Counter(t.task_id for t in found) == Counter(f"t{i}" for i in range(len(rows)))
    assert all((t.reward is not None) == t.stop_reason.valid for t in found)
    assert Fresh.live == 0
    assert Fresh.most_live <= live


def test_unknown_ids_stop_the_run_before_anything_is_spent(player: Any) -> None:
    with pytest.raises(ConfigError, match="unknown environment 'skyrl/swee-v0'; did you mean 'skyrl/swe-v0'"):
        asyncio.run(_first(Runner(player), RolloutRequest("skyrl/swee-v0", Task("t", {}), "t")))


async def _first(runner: Runner, request: RolloutRequest) -> None:
    async for _ in runner.run([request]):
        pass
