"""What the engine does, one thing a test, on a virtual clock."""

import asyncio
from collections import Counter
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.errors import PolicyError, RunAborted, SandboxError, StopReason
from skyrl_gym.policy import Completion, PolicyLoad, Prompt, Sampling
from skyrl_gym.rollout import FailurePolicy, Journal, MetricsLog, RolloutLimits, RunMetrics, read_journal
from skyrl_gym.rollout.admission import Admission
from skyrl_gym.rollout.virtual import run_virtual
from tests.rollout.world import CLOCKS, World, WorldEnv, WorldPolicy, play, requests_of, runner_in, tasks_of

OUTAGE = FailurePolicy(trip_after=3, probe_s=5, probe_limit_s=20, give_up_s=500, abort_share=1.0)


class Away(WorldPolicy):
    """A server that is away for a time."""

    def __init__(self, tasks: Any, until_s: float) -> None:
        super().__init__(tasks)
        self.until_s = until_s
        self.failed = 0

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        if asyncio.get_running_loop().time() < self.until_s:
            self.failed += 1
            raise PolicyError("connection refused")
        return await super().complete(prompt, sampling)


class Counting(WorldPolicy):
    """Counts the completions that are under way, and the most that were at once."""

    running = most = 0

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await super().complete(prompt, sampling)
        finally:
            self.running -= 1


def play_with(policy: WorldPolicy, world: World, tasks: Any, **settings: Any) -> list[Any]:
    async def collect() -> list[Any]:
        runner = replace(runner_in(world, tasks, **settings), policy=policy)
        return [t async for t in runner.run(requests_of(tasks))]

    return run_virtual(collect())


def test_a_server_that_is_away_pauses_the_run_instead_of_burning_its_tasks() -> None:
    tasks = tasks_of([{}] * 30)
    policy, world = Away(tasks, until_s=120), World()
    limits = RolloutLimits(live=4, setup=4, retries=2)
    found = play_with(policy, world, tasks, limits=limits, failures=OUTAGE)
    assert all(t.valid for t in found)
    assert policy.failed < 4 * 2 + 3 + 12
    assert world.opened.total() == 30 + policy.failed


def test_a_run_that_waits_says_for_what_and_what_it_was_told(caplog: pytest.LogCaptureFixture) -> None:
    tasks = tasks_of([{}] * 10)
    play_with(Away(tasks, until_s=60), World(), tasks, failures=OUTAGE)
    told = [record.getMessage() for record in caplog.records]
    assert told.count("the policy is down, the run waits for it: connection refused") == 1
    assert any("t2, attempt 1: policy_error (connection refused); again in" in line for line in told)


def test_a_sandbox_backend_that_is_away_pauses_the_run_instead_of_burning_its_tasks() -> None:
    class AwayEnv(WorldEnv):
        async def setup(self, task: Any) -> str:
            opening = await super().setup(task)
            if asyncio.get_running_loop().time() < 120:
                raise SandboxError("the daemon does not answer")
            return opening

    tasks, world = tasks_of([{}] * 30), World()
    runner = runner_in(world, tasks, limits=RolloutLimits(live=4, setup=4, retries=2), failures=OUTAGE)
    reports: list[RunMetrics] = []
    runner = replace(runner, make=lambda env_id, **_: AwayEnv(world), on_metrics=reports.append)

    async def collect() -> list[Any]:
        return [t async for t in runner.run(requests_of(tasks))]

    assert all(t.valid for t in run_virtual(collect()))
    assert world.opened.total() < 30 + 4 * 2 + 3 + 12
    assert any(report.trouble() == "waiting for the sandbox" for report in reports)


def test_tokens_are_counted_by_their_ids_else_as_the_server_says() -> None:
    class Counted(WorldPolicy):
        async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
            return replace(await super().complete(prompt, sampling), usage=(100, 7))

    tasks, reports = tasks_of([{}] * 3), list[RunMetrics]()
    play_with(Counted(tasks), World(), tasks, on_metrics=reports.append)
    assert (reports[-1].turns, reports[-1].tokens) == (6, 42)


def test_a_server_that_stays_away_ends_the_run_and_every_task_is_accounted_for() -> None:
    tasks = tasks_of([{}] * 30)
    seen: list[Any] = []

    async def collect() -> None:
        runner = replace(runner_in(World(), tasks, failures=OUTAGE), policy=Away(tasks, until_s=1e9))
        async for trajectory in runner.run(requests_of(tasks)):
            seen.append(trajectory)

    with pytest.raises(RunAborted, match="the policy has been down for more than 500 s"):
        run_virtual(collect())
    assert Counter(t.task_id for t in seen) == Counter(task.id for task in tasks)


def test_a_run_that_mostly_fails_aborts() -> None:
    failures = FailurePolicy(abort_after=10, abort_share=0.5, trip_after=1_000)
    with pytest.raises(RunAborted, match="too much of the machinery fails"):
        play(World(), [{"at": "tool", "fault": "raise"}] * 40, failures=failures)


def test_retries_of_the_whole_run_are_bounded() -> None:
    failures = FailurePolicy(retry_share=0.1, abort_share=1.0, trip_after=1_000)
    world = World()
    rows = [{"at": "grade", "fault": "raise"}] * 50
    found, _ = play(world, rows, limits=RolloutLimits(live=4, retries=3), failures=failures)
    assert {t.stop_reason for t in found} == {StopReason.GRADE_ERROR}
    assert world.opened.total() == 60  # ten retries are always allowed


def test_pauses_before_retries_grow() -> None:
    policy = FailurePolicy(backoff_s=1.0, backoff_limit_s=8.0)
    for attempt, middle in ((0, 1), (1, 2), (2, 4), (9, 8)):
        assert 0.5 * middle <= policy.pause(attempt) <= 1.5 * middle


def test_groups_that_are_nearly_complete_go_first() -> None:
    finished: list[str] = []
    limits = RolloutLimits(live=2, setup=2, ready=0)
    play(World(), [{}] * 6, samples=4, limits=limits, on_each=lambda t: finished.append(t.group))
    assert finished == sorted(finished)


def test_what_took_long_begins_first_the_next_time() -> None:
    tasks = tasks_of([{"seconds": {"tool": seconds}} for seconds in (1.0, 1.0, 30.0, 5.0)])

    async def twice() -> list[list[str]]:
        began = []
        runner = runner_in(World(), tasks, limits=RolloutLimits(live=4, setup=1, ready=4))
        for _ in range(2):
            world = World()
            async with aclosing(replace(runner, make=world.make).run(requests_of(tasks))) as found:
                assert len([t async for t in found]) == 4
            began.append(list(world.opened))
        return began

    first, second = run_virtual(twice())
    assert first == ["t0", "t1", "t2", "t3"]
    assert second[:2] == ["t2", "t3"]


def test_a_group_closes_once_it_has_enough_and_the_rest_is_surplus() -> None:
    world = World()
    limits = RolloutLimits(live=8, setup=8, close_groups_at=3)
    found, _ = play(world, [{}, {}], samples=8, limits=limits)
    endings = Counter((t.task_id, t.stop_reason) for t in found)
    assert all(endings[(task, StopReason.DONE)] >= 3 for task in ("t0", "t1"))
    assert {reason for _, reason in endings} == {StopReason.DONE, StopReason.SURPLUS}
    assert len(found) == 16
    assert world.opened == world.closed


def test_what_is_drawn_of_a_group_after_it_has_closed_is_never_begun() -> None:
    world = World()
    found, _ = play(world, [{}, {}], samples=4, limits=RolloutLimits(live=1, setup=1, close_groups_at=1))
    assert Counter((t.task_id, t.stop_reason) for t in found) == {
        (task, reason): count
        for task in ("t0", "t1")
        for reason, count in ((StopReason.DONE, 1), (StopReason.SURPLUS, 3))
    }
    assert world.opened == {"t0": 1, "t1": 1}


@pytest.mark.parametrize(("valid", "played"), [(1, 2), (2, 1), (3, 0), (5, 0)])
def test_valid_trajectories_of_an_earlier_run_count_towards_closing_a_group(valid: int, played: int) -> None:
    world, tasks = World(), tasks_of([{}])
    runner = runner_in(world, tasks, limits=RolloutLimits(live=1, setup=1, close_groups_at=3))
    requests = [replace(request, group_valid=valid) for request in requests_of(tasks, 4)]

    async def collect() -> list[Any]:
        return [t async for t in runner.run(requests)]

    found = run_virtual(collect())
    assert Counter(t.stop_reason for t in found) == Counter({StopReason.DONE: played, StopReason.SURPLUS: 4 - played})
    assert world.opened.total() == played


def test_a_setup_that_fails_is_torn_down_on_the_clock_of_teardowns() -> None:
    """Inside the setup stage the teardown would be cut by that stage's end, or left alone, beyond every bound."""
    slow = {"teardown": 9.0}
    rows = [{"at": "setup", "fault": fault, "seconds": slow | {"setup": 8.0}} for fault in ("hang", "raise")]
    world = World()
    found, _ = play(world, rows, limits=RolloutLimits(live=1, setup=1, retries=0))
    assert {t.stop_reason for t in found} == {StopReason.SETUP_TIMEOUT, StopReason.SETUP_ERROR}
    assert world.torn == world.opened
    assert world.most["live"] == 1


def test_a_turns_clock_ends_the_episode_which_is_graded() -> None:
    rows = [{"seconds": {"tool": 30.0}}]
    (found,), _ = play(World(), rows, deadlines=replace(CLOCKS, turn_s=5))
    assert (found.stop_reason, found.reward) == (StopReason.TURN_TIMEOUT, 1.0)


def test_the_clocks_say_how_long_it_really_took() -> None:
    rows = [{"at": "setup", "fault": "hang"}, {"at": "grade", "fault": "hang"}, {"at": "tool", "fault": "hang"}]
    found, _ = play(World(), rows)
    seconds = {t.stop_reason: t.seconds for t in found}
    assert seconds[StopReason.SETUP_TIMEOUT]["setup"] == pytest.approx(10, abs=0.2)
    assert seconds[StopReason.GRADE_TIMEOUT]["grade"] == pytest.approx(10, abs=0.2)
    assert seconds[StopReason.EPISODE_TIMEOUT]["run"] == pytest.approx(60, abs=0.5)


def test_a_timeout_of_somebody_elses_is_no_clock_of_ours() -> None:
    rows = [{"at": stage, "fault": "timeout_error"} for stage in ("setup", "policy", "grade", "tool")]
    found, _ = play(World(), rows)
    endings = {t.task_id: t.stop_reason for t in found}
    assert endings == {"t0": "setup_error", "t1": "policy_error", "t2": "grade_error", "t3": "done"}


def test_what_is_stuck_is_named_before_its_deadline() -> None:
    reports: list[RunMetrics] = []
    play(World(), [{"at": "tool", "fault": "hang"}, {}], on_metrics=reports.append, metrics_every_s=5)
    early = [stuck for report in reports for stuck in report.stuck if stuck.seconds < 40]
    assert early and early[0].task_id == "t0" and early[0].stage == "run"
    assert any("happen" in line for line in early[0].stack)
    told = next(report.trouble() for report in reports if report.stuck)
    assert told.startswith("slow: t0, sample 0: run for ")
    assert told.endswith(" in happen"), "the line that waits, not asyncio's"


def test_a_run_can_be_told_in_a_line() -> None:
    reports: list[RunMetrics] = []
    play(World(), [{"seconds": {"tool": 5.0}}] * 4, on_metrics=reports.append, metrics_every_s=1)
    busy = next(report for report in reports if report.run)
    assert busy.headline()["running"] == busy.run and busy.trouble() == ""
    assert not {"running", "retries", "leaks"} & set(reports[-1].headline()), "what is nothing is left out"


def test_metrics_are_lines_of_json(tmp_path: Path) -> None:
    import json

    with MetricsLog(tmp_path / "m.jsonl") as log:
        play(World(), [{"seconds": {"tool": 5.0}}] * 9, on_metrics=log, metrics_every_s=1)
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert lines[-1]["finished"] == {"done": 9} and lines[-1]["live"] == 0
    assert max(line["run"] for line in lines) > 1
    assert set(lines[-1]["stage_s"]) == {"setup", "run", "grade"}


def test_a_reader_that_is_slow_holds_the_run_back() -> None:
    world, tasks = World(), tasks_of([{}] * 100)

    async def read_slowly() -> None:
        runner = runner_in(world, tasks)
        async with aclosing(runner.run(requests_of(tasks))) as found:
            async for _ in found:
                await asyncio.sleep(50)
                if world.opened.total() >= 40:
                    break
                assert world.opened.total() - world.closed.total() <= 4
            assert asyncio.get_running_loop().time() > 50 * 25

    run_virtual(read_slowly())


def test_requests_of_a_stream_that_still_grows_are_played_as_they_come() -> None:
    tasks = tasks_of([{}] * 5)

    async def stream() -> Any:
        for request in requests_of(tasks):
            await asyncio.sleep(20)
            yield request

    async def collect() -> list[tuple[str, float]]:
        runner = runner_in(World(), tasks)
        clock = asyncio.get_running_loop().time
        return [(t.task_id, clock()) async for t in runner.run(stream())]

    found = run_virtual(collect())
    assert [task for task, _ in found] == [f"t{i}" for i in range(5)]
    assert all(20 * (i + 1) <= when < 20 * (i + 2) for i, (_, when) in enumerate(found))


def test_a_trace_that_is_cut_is_kept_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    with Journal(path) as journal:
        rows = [{"seconds": {"tool": 50.0}}] * 3
        found, _ = play(World(), rows, journal=journal, deadlines=replace(CLOCKS, run_s=10))
    kept = list(read_journal(path))
    assert {t.stop_reason for t in found} == {t.stop_reason for t in kept} == {StopReason.RUN_TIMEOUT}
    assert len(kept) == 3 and all(t.opening for t in kept)


def test_admission_grows_while_there_is_room_and_shrinks_with_a_queue() -> None:
    admission = Admission()
    sizes = [admission.update(PolicyLoad(16, 0, 0.1), admission.bound, 256) for _ in range(10)]
    assert sizes == sorted(sizes) and sizes[-1] == 256
    assert admission.update(PolicyLoad(100, 80, 0.5), 200, 256) == 175
    assert admission.update(PolicyLoad(175, 0, 0.99), 175, 256) == 153
    assert admission.update(PolicyLoad(150, 0, 0.5), 153, 256) == 153 + 9
    assert admission.update(PolicyLoad(10, 0, 0.1), 10, 256) == 162, "what isn't used says nothing"
    for _ in range(100):
        admission.update(PolicyLoad(1, 50, 1.0), 1, 256)
    assert admission.bound == 1


def test_a_policy_that_says_how_many_it_takes_at_once_is_given_so_many_from_the_first() -> None:
    assert Admission().update(PolicyLoad(0, 0, places=64), 0, 256) == 64
    assert Admission().update(PolicyLoad(0, 0, places=64), 0, 32) == 32
    assert Admission().update(PolicyLoad(0, 0), 0, 256) == 16


def test_what_a_run_has_learned_of_its_policy_holds_for_the_next() -> None:
    class Roomy(Counting):
        async def current_load(self) -> PolicyLoad:
            return PolicyLoad(self.running, 0, 0.1)

    tasks = tasks_of([{"seconds": {"policy": 5.0}, "at": "policy", "fault": "none"} for _ in range(100)])
    admission = Admission()
    limits = RolloutLimits(live=100, setup=100, grade=100)
    play_with(Roomy(tasks), World(), tasks, limits=limits, admission=admission)
    learned = admission.bound
    again = Roomy(tasks[:40])
    play_with(again, World(), tasks[:40], limits=limits, admission=admission)
    assert learned > 16
    assert again.most == 40


def test_a_policy_with_a_queue_is_given_fewer_episodes() -> None:
    class Small(Counting):
        async def current_load(self) -> PolicyLoad:
            return PolicyLoad(min(self.running, 8), max(0, self.running - 8), self.running / 40)

    tasks = tasks_of([{"seconds": {"policy": 2.0}, "at": "policy", "fault": "none"} for _ in range(300)])
    policy = Small(tasks)
    limits = RolloutLimits(live=200, setup=200, grade=200)
    found = play_with(policy, World(), tasks, limits=limits)
    assert all(t.valid for t in found)
    assert policy.most <= 40
