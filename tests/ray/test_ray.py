"""The runner over a real Ray cluster of two nodes: nothing lost, nothing doubled, nothing left, whoever dies."""

import asyncio
from collections import Counter
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.errors import ConfigError, RunAborted, StopReason, TaskError
from skyrl_gym.rollout import Deadlines, FailurePolicy, Journal, RolloutLimits, Trajectory, read_journal
from skyrl_gym.rollout.ray import Cluster, RayRunner

pytest.importorskip("ray", reason="Ray is not installed; `make test-ray` installs it and runs these")

from tests.ray.diary import make_diary, make_policy, requests, wait_until, workers_alive

# Ray's own code is not ours to repair.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

EACH = RolloutLimits(live=3, setup=2, grade=2)


def runner(folder: Path, *, workers: int = 2, slow_s: float = 0.0, **settings: Any) -> RayRunner:
    return RayRunner(
        settings.pop("policy", make_policy),
        env_kwargs={"folder": str(folder), "slow_s": slow_s},
        make=make_diary,
        cluster=Cluster(workers=workers),
        **{"limits": EACH, "failures": FailurePolicy(backoff_s=0.1), **settings},
    )


async def collect(run: RayRunner, asked: list[Any], on_each: Any = lambda found: None) -> list[Trajectory]:
    found: list[Trajectory] = []
    async for trajectory in run.run(asked):
        found.append(trajectory)
        on_each(found)
    return found


def keys_once(found: list[Trajectory], asked: list[Any]) -> bool:
    return Counter(one.key for one in found) == Counter(request.key for request in asked)


def all_closed(folder: Path) -> bool:
    return len(list(folder.glob("*.opened"))) == len(list(folder.glob("*.closed")))


def nodes_of(found: list[Trajectory]) -> set[str]:
    return {one.turns[0].observations[0].text for one in found}


def test_episodes_are_played_on_all_nodes_within_the_bounds(cluster: Any, second_node: Any, tmp_path: Path) -> None:
    drawn = 0
    most_ahead = 0

    def draw() -> Any:
        nonlocal drawn
        for request in asked:
            drawn += 1
            yield request

    def watch(found: list[Trajectory]) -> None:
        nonlocal most_ahead
        most_ahead = max(most_ahead, drawn - len(found))

    asked = requests([{"worth": i / 10} for i in range(10)], samples=4)
    found = asyncio.run(collect(runner(tmp_path, slow_s=0.1), draw(), watch))  # type: ignore[arg-type]
    assert keys_once(found, asked)
    assert {one.task_id: one.reward for one in found} == {f"t{i}": i / 10 for i in range(10)}
    assert len(nodes_of(found)) == 2
    assert most_ahead <= 4 * 2 * EACH.live  # live, waiting to be chosen among, and unread
    assert all_closed(tmp_path)
    wait_until(lambda: workers_alive() == 0)


def test_a_node_that_dies_costs_its_episodes_a_try_and_nothing_else(
    cluster: Any, second_node: Any, tmp_path: Path
) -> None:
    killed = False

    def kill_a_node(found: list[Trajectory]) -> None:
        nonlocal killed
        if len(found) == 8 and not killed:
            killed = True
            cluster.remove_node(second_node, allow_graceful=False)

    asked = requests([{}] * 12, samples=4)
    with Journal(tmp_path / "journal.jsonl") as journal:
        found = asyncio.run(collect(runner(tmp_path, slow_s=0.5, journal=journal), asked, kill_a_node))
    assert killed
    assert keys_once(found, asked)
    assert {one.stop_reason for one in found} == {StopReason.DONE}
    assert any(one.attempt > 0 for one in found)
    assert keys_once(list(read_journal(tmp_path / "journal.jsonl")), asked)


def test_a_worker_that_is_killed_is_replaced(cluster: Any, tmp_path: Path) -> None:
    asked = requests([{}, {"at": "kill"}, {}, {"at": "once"}], samples=1)
    found = asyncio.run(collect(runner(tmp_path, workers=1), asked))
    assert keys_once(found, asked)
    assert {one.stop_reason for one in found} == {StopReason.DONE}, [one.error for one in found]
    assert {one.task_id: one.attempt > 0 for one in found}["t1"]
    assert {one.task_id: one.attempt > 0 for one in found}["t3"]
    wait_until(lambda: workers_alive() == 0)


def test_what_kills_its_worker_each_time_is_excluded_and_named(cluster: Any, tmp_path: Path) -> None:
    def make(env_id: str, **kwargs: Any) -> Any:
        import os

        os._exit(7)

    once = RolloutLimits(live=3, retries=0)
    (found,) = asyncio.run(collect(_with(runner(tmp_path, workers=1, limits=once), make=make), requests([{}])))
    assert (found.stop_reason, found.reward) == (StopReason.WORKER_LOST, None)
    assert found.error is not None and found.error.type == "WorkerLost"


def _with(run: RayRunner, **changes: Any) -> RayRunner:
    from dataclasses import replace

    return replace(run, **changes)


@pytest.mark.parametrize(("at", "said"), [("bug", "TypeError: planted bug"), ("odd", "RuntimeError: Odd: one and 2")])
def test_a_bug_in_an_environment_stops_the_run_and_everyone_is_accounted_for(
    cluster: Any, tmp_path: Path, at: str, said: str
) -> None:
    asked = requests([{"at": at}] + [{}] * 20)
    found: list[Trajectory] = []
    with pytest.raises(RunAborted, match=said):
        asyncio.run(collect(runner(tmp_path, workers=1, slow_s=0.1), asked, lambda so_far: found.__init__(so_far)))  # type: ignore[misc]
    assert keys_once(found, asked)
    assert {one.task_id: one.stop_reason for one in found}["t0"] is StopReason.CRASH
    assert all_closed(tmp_path)
    wait_until(lambda: workers_alive() == 0)


def test_a_wrong_task_is_the_users_error_in_the_users_words(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="field 'question' is missing"):
        asyncio.run(collect(runner(tmp_path, workers=1), requests([{"at": "setup"}])))


def test_a_policy_that_can_not_be_built_is_named(cluster: Any, tmp_path: Path) -> None:
    import os

    here = os.getpid()

    def broken() -> Any:
        if os.getpid() != here:
            raise ConfigError("no such server")
        return make_policy()

    with pytest.raises(ConfigError, match="no such server"):
        asyncio.run(collect(runner(tmp_path, workers=1, policy=broken), requests([{}])))


def test_a_cancelled_driver_frees_every_environment_and_worker(cluster: Any, tmp_path: Path) -> None:
    async def cancel() -> None:
        with Journal(tmp_path / "journal.jsonl") as journal:
            playing = asyncio.create_task(
                collect(runner(tmp_path, workers=2, journal=journal), requests([{"at": "for ever"}] * 6))
            )
            await asyncio.to_thread(wait_until, lambda: len(list(tmp_path.glob("*.opened"))) == 6)
            playing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await playing

    asyncio.run(cancel())
    assert all_closed(tmp_path)
    kept = list(read_journal(tmp_path / "journal.jsonl"))
    assert len(kept) == 6 and {one.stop_reason for one in kept} == {StopReason.CANCELLED}
    assert all(one.opening and one.reward is None for one in kept)
    wait_until(lambda: workers_alive() == 0)


def test_leaving_early_and_resuming_plays_what_is_missing(cluster: Any, tmp_path: Path) -> None:
    asked = requests([{}] * 10)
    path = tmp_path / "journal.jsonl"

    async def first(count: int) -> None:
        with Journal(path) as journal:
            async with aclosing(runner(tmp_path, workers=1, slow_s=0.1, journal=journal).run(asked)) as found:
                async for _ in found:
                    count -= 1
                    if not count:
                        break

    asyncio.run(first(3))
    done = {one.key for one in read_journal(path) if one.valid}
    assert 3 <= len(done) < 10
    missing = [request for request in asked if request.key not in done]
    with Journal(path) as journal:
        found = asyncio.run(collect(runner(tmp_path, workers=1, journal=journal), missing))
    assert keys_once(found, missing)
    assert keys_once([one for one in read_journal(path) if one.valid], asked)
    assert all_closed(tmp_path)


def test_the_runs_clock_ends_it_everywhere(cluster: Any, tmp_path: Path) -> None:
    asked = requests([{"at": "for ever"}] * 5)
    found = asyncio.run(collect(runner(tmp_path, workers=1, deadlines=Deadlines(run_s=8)), asked))
    assert keys_once(found, asked)
    assert {one.stop_reason for one in found} == {StopReason.RUN_TIMEOUT}
    assert all_closed(tmp_path)


def test_a_cluster_without_room_for_workers_aborts_the_run(cluster: Any, tmp_path: Path) -> None:
    run = _with(
        runner(tmp_path, failures=FailurePolicy(give_up_s=2)),
        cluster=Cluster(workers=1, worker_options={"resources": {"moonstone": 1}}),
    )
    with pytest.raises(RunAborted, match="no worker for 2 s"):
        asyncio.run(collect(run, requests([{}])))
