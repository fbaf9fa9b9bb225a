"""Whole trainings of two processes, by the shipped configurations: killed, gone on with, saved and evaluated."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from skyrl_gym.rollout import Trajectory, read_journal
from skyrl_gym.trainer.resume import journal_of
from tests.trainer.say import GROUPS, SIZE, STEPS, run, trajectories

CONFIGS = Path(__file__).parents[2] / "recipes/accelerate"
# Accelerate gives shards to accelerators only: this machine is passed off as one with two of them.
DISGUISE = """
import os, sys, warnings
warnings.simplefilter("ignore")
import torch; torch.set_num_threads(1)

def disguise():
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        from accelerate import PartialState
        from accelerate.utils import DistributedType
        torch.distributed.init_process_group("gloo")
        PartialState._prepare_backend = lambda *_: ("gloo", DistributedType.MULTI_GPU)
"""
LAUNCHED = (
    DISGUISE
    + """
from skyrl_gym.cli import main
disguise()
main()
"""
)
# Everything is imported once, and each process is a fork of that; their environment is the launcher's.
LIVES = (
    DISGUISE
    + """
import pathlib, random, signal, socket, time, traceback
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env
from skyrl_gym.cli import main
from skyrl_gym.registration import register_file
from skyrl_gym.trainer.recipe import load_recipe
from skyrl_gym.trainer.run import train

def train_part(folder):
    disguise()
    train(load_recipe("recipe.yaml"), folder, resume=True)
    torch.distributed.destroy_process_group()

def forked(work, *arguments, **environment):
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.environ.update(environment)
        work(*arguments)
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)

def life(folder, until=None):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    # One that is to be killed can't end before: its last evaluation does not begin.
    held = {} if until is None else {"SAY_IS_HELD_BY": f"{folder}/eval/before/summary.json"}
    ranks = [
        forked(train_part, folder, **launched, **held, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2",
               LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        for rank in range(2)
    ]
    if until is not None:
        while not until.exists() and not os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            time.sleep(0.02)
        time.sleep(random.uniform(0.0, 1.0))
        for rank in ranks:
            os.kill(rank, signal.SIGKILL)
    return [os.waitpid(rank, 0)[1] for rank in ranks]

words = ["--config_file", sys.argv[1], "--num_processes", "2", "--mixed_precision", "no", "nothing.py"]
launched = prepare_multi_gpu_env(_validate_launch_command(launch_command_parser().parse_args(words))[0])
register_file("registry.yaml")
assert life("whole") == [0, 0], "whole"
assert life("killed", pathlib.Path("killed/checkpoints/checkpoint-2/whole")) == [signal.SIGKILL] * 2, "killed"
assert life("killed") == [0, 0], "gone on with"
sys.argv = "skyrl eval say-v0 --model killed/model --registry registry.yaml -n 2 --out evaluated".split()
assert os.waitpid(forked(main), 0)[1] == 0, "evaluated"
"""
)


def sampled(trajectory: Trajectory) -> list[tuple[int, ...]]:
    return [turn.transition.sampled_ids for turn in trajectory.turns if turn.transition]


@pytest.mark.timeout(420)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("config", ["fsdp2.yaml", pytest.param("ddp.yaml", marks=pytest.mark.slow)])
def test_a_run_of_two_processes_that_is_killed_ends_as_one_that_was_not(place: Path, config: str) -> None:
    (place / "lives.py").write_text(LIVES)
    done = run(place, "lives.py", str(CONFIGS / config), ACCELERATE_TORCH_DEVICE="cpu")
    assert done.returncode == 0, done.stderr[-3_000:]
    whole, killed = (AutoModelForCausalLM.from_pretrained(place / name / "model") for name in ("whole", "killed"))
    before = AutoModelForCausalLM.from_pretrained(place / "model", dtype=whole.dtype).state_dict()
    for name, value in whole.state_dict().items():
        assert torch.equal(value, killed.state_dict()[name]), name
        assert "proj" not in name or not torch.equal(value, before[name]), name
    one, other = ({t.key: sampled(t) for t in trajectories(place / name)} for name in ("whole", "killed"))
    assert one == other
    assert len(trajectories(place / "killed")) == len(other), "one was played twice"
    steps = [json.loads(line) for line in (place / "killed/metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    for when in ("before", "after"):
        held_out = json.loads((place / "killed/eval" / when / "summary.json").read_text())
        assert held_out["judged"] == held_out["total"] == held_out["tasks"] == 3
    evaluated = json.loads((place / "evaluated/summary.json").read_text())
    assert evaluated["judged"] == evaluated["total"] == 10


@pytest.mark.slow
@pytest.mark.parametrize("config", ["fsdp2.yaml", "ddp.yaml"])
def test_the_launcher_starts_processes_that_share_the_work_of_one_run(place: Path, config: str) -> None:
    (place / "launched.py").write_text(LAUNCHED)
    launch = ["-m", "accelerate.commands.launch", "--config_file", str(CONFIGS / config)]
    launch += ["--num_processes", "2", "--mixed_precision", "no", "--main_process_port", "0"]
    words = ["launched.py", "train", "recipe.yaml", "--registry", "registry.yaml", "--name", "two"]
    done = run(place, *launch, *words, ACCELERATE_TORCH_DEVICE="cpu")
    assert done.returncode == 0, done.stderr[-3_000:]
    folder = place / "runs/two"
    shares = [list(read_journal(journal_of(folder, rank))) for rank in (0, 1)]
    assert len(shares[0]) == len(shares[1]) > 0
    groups = json.loads((folder / "steps.jsonl").read_text().splitlines()[-1])["groups"]
    assert groups >= STEPS * GROUPS
    assert sorted(t.sample for t in trajectories(folder)) == list(range(groups * SIZE))
    assert (folder / "model/model.safetensors").exists()
