"""A training that is killed goes on where it was: nothing that was finished is played twice, nothing is lost."""

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from skyrl_gym import StopReason, Task
from skyrl_gym.rollout import Journal, RolloutRequest, Trajectory
from skyrl_gym.trainer.resume import Finished, Ledger, checkpoint_of, cut_metrics, journal_of, mark_whole
from tests.trainer.say import GROUPS, SIZE, STEPS, run, trajectories

# Everything is imported once; each life of the run is a fork of that, so that a kill costs seconds.
PROGRAM = """
import os, random, signal, sys, threading, time, traceback, warnings
warnings.simplefilter("ignore")
import torch; torch.set_num_threads(1)
from skyrl_gym.registration import register_file
from skyrl_gym.trainer.recipe import load_recipe
from skyrl_gym.trainer.run import train
register_file(sys.argv[1])
recipe, folder, rng = load_recipe(sys.argv[2]), sys.argv[3], random.Random(int(sys.argv[4]))
for life in range(40):
    child = os.fork()
    if not child:
        try:
            train(recipe, folder, resume=True)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    doomed = life < 4
    if doomed:
        time.sleep(rng.uniform(0.3, 3.0))
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status):
        sys.exit(f"life {life}: {os.WEXITSTATUS(status)}" if os.WEXITSTATUS(status) else 0)
"""


def trajectory(number: int, sample: int = 0, reason: StopReason = StopReason.DONE) -> Trajectory:
    return Trajectory("e", "t", "h", f"{number}/t", sample, reason)


def test_the_ledger_says_how_many_groups_earlier_steps_drew_whatever_was_torn(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "steps.jsonl")
    assert ledger.position_before(3) == 0
    for step, groups in enumerate((4, 10, 14)):
        ledger.note(step, groups)
    with (tmp_path / "steps.jsonl").open("a") as file:
        file.write('{"step": 3, "gro')
    assert [ledger.position_before(step) for step in range(5)] == [0, 4, 10, 14, 14]
    ledger.cut(1)
    ledger.note(1, 8)
    assert [ledger.position_before(step) for step in range(4)] == [0, 4, 8, 8]


def test_finished_trajectories_are_taken_once_and_those_of_a_run_that_stopped_never(tmp_path: Path) -> None:
    with Journal(journal_of(tmp_path, 0)) as first, Journal(journal_of(tmp_path, 1)) as second:
        first.append(trajectory(0, 0))
        first.append(trajectory(3, 12))
        second.append(trajectory(3, 13))
        second.append(trajectory(4, 16, StopReason.CANCELLED))
        second.append(trajectory(4, 17, StopReason.SANDBOX_LOST))
        second.append(trajectory(4, 18, StopReason.CRASH))
    finished = Finished.read(tmp_path, position=1)
    assert len(finished) == 3
    request = RolloutRequest("e", Task("t", {}), "3/t", 12)
    finished = Finished([replace(trajectory(3, 12), task_hash=request.task.hash, reward=1.0)])
    spare = replace(request, sample=13)
    (taken,), missing = finished.take([request, spare])
    assert taken.sample == 12 and missing == [replace(spare, group_valid=1)]
    assert finished.take([request]) == ([], [request])


def test_the_newest_whole_checkpoint_counts_and_a_torn_one_is_removed(tmp_path: Path) -> None:
    for step in (2, 10, 9):
        (tmp_path / f"checkpoint-{step}").mkdir()
    mark_whole(tmp_path / "checkpoint-2")
    mark_whole(tmp_path / "checkpoint-9")
    assert checkpoint_of(tmp_path) == tmp_path / "checkpoint-9"
    assert not (tmp_path / "checkpoint-10").exists()
    assert checkpoint_of(tmp_path / "nowhere") is None


def test_metrics_of_steps_that_are_taken_again_are_cut(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste')
    cut_metrics(file, 2)
    assert file.read_text() == '{"step": 1}\n{"step": 2}\n'
    cut_metrics(tmp_path / "none.jsonl", 2)


@pytest.mark.timeout(420)
@pytest.mark.parametrize("staleness", [0, pytest.param(1, marks=pytest.mark.slow)], ids=["by turns", "ahead"])
def test_a_run_that_is_killed_again_and_again_plays_every_trajectory_once(place: Path, staleness: int) -> None:
    recipe = json.loads((place / "recipe.yaml").read_text())
    recipe["rollout"]["staleness"] = staleness
    (place / "recipe.yaml").write_text(json.dumps(recipe))
    script = place / "lives.py"
    script.write_text(PROGRAM)
    done = run(place, str(script), "registry.yaml", "recipe.yaml", "run", str(random.randrange(10**6)))
    assert done.returncode == 0, done.stderr[-3_000:]
    steps = [json.loads(line) for line in (place / "run/steps.jsonl").read_text().splitlines()]
    assert [line["step"] for line in steps] == list(range(STEPS))
    finished = [t for t in trajectories(place / "run") if t.stop_reason is not StopReason.CANCELLED]
    keys = Counter(t.key for t in finished)
    assert set(keys.values()) == {1}
    trained = range(steps[-1]["groups"] * SIZE)
    ahead = {t.sample for t in finished} - set(trained)
    assert set(trained) <= {t.sample for t in finished}
    assert not ahead or (staleness and max(ahead) < trained.stop + staleness * GROUPS * SIZE)
    metrics = [json.loads(line)["step"] for line in (place / "run/metrics.jsonl").read_text().splitlines()]
    assert metrics == list(range(1, STEPS + 1))
    assert (place / "run/model/model.safetensors").exists()
    assert (place / "run/report.html").exists()
