"""Whatever fails wherever: N outcomes, bounds that hold, nothing left behind. On a virtual clock."""

import asyncio
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from skyrl_gym.rollout import FailurePolicy, Journal, RolloutLimits, read_journal
from skyrl_gym.rollout.virtual import run_virtual
from tests.rollout.world import CLOCKS, FAULTS, STAGES, World, play, requests_of, runner_in, tasks_of

seconds = st.fixed_dictionaries({stage: st.sampled_from([0.0, 0.1, 1.0, 5.0]) for stage in STAGES})
healthy = st.fixed_dictionaries({"seconds": seconds})
faulty = st.fixed_dictionaries(
    {
        "seconds": seconds,
        "at": st.sampled_from(STAGES),
        "fault": st.sampled_from(FAULTS),
        "turn": st.sampled_from([0, 1]),
    }
)
cut = st.fixed_dictionaries({"at": st.just("policy"), "fault": st.just("cut"), "turn": st.sampled_from([0, 1])})
rows = st.lists(st.one_of(healthy, faulty), max_size=10)
limits = st.builds(
    RolloutLimits,
    live=st.integers(1, 6),
    setup=st.integers(1, 4),
    run=st.one_of(st.none(), st.integers(1, 4)),
    ready=st.integers(0, 3),
    grade=st.integers(1, 3),
    retries=st.integers(0, 2),
)
LATE = ("hang", "deaf", "late")
CALM = FailurePolicy(abort_share=1.0, trip_after=1_000)


@settings(max_examples=150)
@given(rows, limits, st.integers(1, 3))
def test_n_requests_give_n_typed_outcomes_within_bounds_and_leave_nothing(
    rows: list[dict[str, Any]], limits: RolloutLimits, samples: int
) -> None:
    world = World()
    found, ended = play(world, rows, samples=samples, limits=limits, failures=CALM)
    wanted = {(f"t{i}", sample) for i in range(len(rows)) for sample in range(samples)}
    assert Counter((t.task_id, t.sample) for t in found) == Counter(wanted)
    assert all((t.reward is not None) == t.stop_reason.valid for t in found)
    assert all(t.error is not None for t in found if not t.stop_reason.valid)
    assert all(t.attempt <= limits.retries for t in found)
    for trajectory in found:
        row = rows[int(trajectory.task_id[1:])]
        if row.get("fault") in LATE and row["at"] in ("setup", "policy", "grade"):
            assert trajectory.stop_reason == f"{row['at']}_timeout"
    assert world.opened == world.closed
    assert world.stages.total() == 0
    assert world.most["live"] <= limits.live
    assert world.most["setup"] <= limits.setup
    assert world.most["grade"] <= limits.grade
    assert ended < 200 * (1 + len(wanted)) * (1 + limits.retries)


@settings(max_examples=75)
@given(st.lists(healthy, max_size=16), limits)
def test_what_is_prepared_ahead_is_bounded(rows: list[dict[str, Any]], limits: RolloutLimits) -> None:
    world = World()
    most_ready = 0

    def look(metrics: Any) -> None:
        nonlocal most_ready
        most_ready = max(most_ready, metrics.ready)
        assert metrics.run <= limits.running
        assert metrics.live <= limits.live

    found, _ = play(world, rows, limits=limits, on_metrics=look, metrics_every_s=0.0)
    assert all(t.valid for t in found)
    assert most_ready <= limits.ready


@settings(max_examples=75)
@given(rows, limits, st.floats(0, 40))
def test_a_reader_that_leaves_at_any_moment_leaves_nothing_behind(
    rows: list[dict[str, Any]], limits: RolloutLimits, leaves_at: float
) -> None:
    world, tasks = World(), tasks_of(rows)
    mended = {task.id for task in tasks if task.data.get("at") != "teardown"}

    async def read(journal: Journal) -> None:
        runner = runner_in(world, tasks, limits=limits, failures=CALM, journal=journal)
        async for trajectory in runner.run(requests_of(tasks)):
            assert trajectory.key in {kept.key for kept in read_journal(journal.path)}, "on disk before it is yielded"

    async def leave(journal: Journal) -> None:
        reading = asyncio.create_task(read(journal))
        await asyncio.wait({reading}, timeout=leaves_at)
        reading.cancel()
        await asyncio.wait({reading}, timeout=120)
        assert reading.done()
        if not reading.cancelled():
            reading.result()
        assert world.opened == world.closed
        assert all(world.torn[name] == world.opened[name] for name in mended)
        await asyncio.sleep(100)
        assert len(asyncio.all_tasks()) == 1

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        with Journal(path, fsync=False) as journal:
            run_virtual(leave(journal))
        kept = list(read_journal(path))
    assert len({t.key for t in kept}) == len(kept)
    assert world.stages.total() == 0


@settings(max_examples=50)
@given(rows, limits, st.floats(0.1, 30))
def test_the_runs_own_clock_ends_it_with_every_trace_kept(
    rows: list[dict[str, Any]], limits: RolloutLimits, run_s: float
) -> None:
    world = World()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        with Journal(path, fsync=False) as journal:
            clocks = replace(CLOCKS, run_s=run_s)
            found, ended = play(world, rows, limits=limits, failures=CALM, deadlines=clocks, journal=journal)
        kept = {t.key: t for t in read_journal(path)}
    assert Counter(t.task_id for t in found) == Counter(f"t{i}" for i in range(len(rows)))
    assert all(kept[t.key] == t for t in found if t.opening)
    assert ended <= run_s + CLOCKS.teardown_s + 2 * CLOCKS.stop_s + 1
    assert world.opened == world.closed


@settings(max_examples=50)
@given(rows, st.integers(1, 3))
def test_a_failure_of_the_machinery_changes_nobody_elses_outcome(rows: list[dict[str, Any]], groups: int) -> None:
    rows = [row | {"group": f"g{i % groups}", "reward": i / 8} for i, row in enumerate(rows)]
    found, _ = play(World(), rows, failures=CALM)
    for trajectory in found:
        row = rows[int(trajectory.task_id[1:])]
        if "fault" not in row or row["at"] == "teardown":
            assert (trajectory.stop_reason, trajectory.reward) == ("done", row["reward"])


@settings(max_examples=50)
@given(st.lists(cut, max_size=6), limits)
def test_a_completion_that_was_cut_is_graded_and_never_executed(
    rows: list[dict[str, Any]], limits: RolloutLimits
) -> None:
    world = World()
    found, _ = play(world, rows, limits=limits)
    for trajectory in found:
        turn = rows[int(trajectory.task_id[1:])]["turn"]
        assert (trajectory.stop_reason, trajectory.reward) == ("length", 1.0)
        assert len(trajectory.turns) == turn + 1 and trajectory.turns[-1].observations == ()
        assert world.worked[trajectory.task_id] == turn
