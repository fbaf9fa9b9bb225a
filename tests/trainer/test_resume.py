"""A training that is killed goes on where it was: nothing that was finished is played twice, nothing is lost."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym import StopReason, Task
from skyrl_gym.chat.testing import tiny_tokenizer
from skyrl_gym.rollout import Journal, RolloutRequest, Trajectory, read_journal
from skyrl_gym.trainer.resume import Finished, Ledger, checkpoint_of, cut_metrics, journal_of, mark_whole

ENVIRONMENT = '''
"""An environment for tests: say something; its length is the reward."""
from skyrl_gym import TaskSet, TextEnv, finish, tool


class SayEnv(TextEnv):
    """Say something."""

    def load_tasks(self, split):
        return TaskSet.from_rows([{"id": f"{split}{i}"} for i in range(5)])

    def setup(self, task):
        return f"Say {task.id}."

    @tool
    def nothing(self):
        """Does nothing."""
        return "ok"

    def respond(self, message):
        self.said = message.text
        return finish()

    def grade(self):
        return float(len(getattr(self, "said", "")) % 4)
'''
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
STEPS, GROUPS, SIZE = 6, 2, 4
RECIPES = Path(__file__).parents[2] / "recipes"


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


def test_finished_trajectories_are_taken_once_and_cancelled_ones_never(tmp_path: Path) -> None:
    with Journal(journal_of(tmp_path, 0)) as first, Journal(journal_of(tmp_path, 1)) as second:
        first.append(trajectory(0, 0))
        first.append(trajectory(3, 12))
        second.append(trajectory(3, 13))
        second.append(trajectory(4, 16, StopReason.CANCELLED))
        second.append(trajectory(4, 17, StopReason.SANDBOX_LOST))
    finished = Finished.read(tmp_path, position=1)
    assert len(finished) == 3
    request = RolloutRequest("e", Task("t", {}), "3/t", 12)
    finished = Finished([replace(t, task_hash=request.task.hash) for t in (trajectory(3, 12),)])
    assert request in finished
    assert finished.take(request).sample == 12
    assert request not in finished


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


@pytest.fixture
def place(tmp_path: Path, tools: Any) -> Path:
    """A folder with a model, an environment and a recipe."""
    tools.tiny_model().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "say_for_test.py").write_text(ENVIRONMENT)
    (tmp_path / "registry.yaml").write_text("say-v0: {entry_point: 'say_for_test:SayEnv', summary: Says.}\n")
    recipe = {
        "name": "r",
        "model": str(tmp_path / "model"),
        "env": {"id": "say-v0"},
        "rollout": {"max_tokens": 12},
        "train": {
            "max_steps": STEPS, "prompts_per_step": GROUPS, "num_generations": SIZE, "learning_rate": 1e-3,
            "per_device_train_batch_size": 4, "save_steps": 2, "bf16": False, "refill_rounds": 1,
        },
        "eval": {"tasks": 2, "samples": 1},
    }  # fmt: skip
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    return tmp_path


def run(place: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", "TERM": "dumb"}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=place, timeout=400,
        env={**os.environ, **quiet, **environment},
    )  # fmt: skip


def trajectories(run_dir: Path) -> list[Trajectory]:
    return [t for path in sorted(run_dir.glob("trajectories*.jsonl")) for t in read_journal(path)]


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


@pytest.mark.slow
def test_two_processes_share_the_work_of_one_run(place: Path) -> None:
    """By the launcher of `recipes/accelerate/ddp.yaml`, whose processes find no GPU here and talk over gloo."""
    launch = ["-m", "accelerate.commands.launch", "--config_file", str(RECIPES / "accelerate/ddp.yaml")]
    launch += ["--num_processes", "2", "--mixed_precision", "no", "--main_process_port", "0"]
    words = ["-m", "skyrl_gym", "train", "recipe.yaml", "--registry", "registry.yaml", "--name", "two"]
    done = run(place, *launch, *words)
    assert done.returncode == 0, done.stderr[-3_000:]
    folder = place / "runs/two"
    shares = [list(read_journal(journal_of(folder, rank))) for rank in (0, 1)]
    assert len(shares[0]) == len(shares[1]) > 0
    groups = json.loads((folder / "steps.jsonl").read_text().splitlines()[-1])["groups"]
    assert sorted(t.sample for t in trajectories(folder)) == list(range(groups * SIZE))
    assert (folder / "model/model.safetensors").exists()
