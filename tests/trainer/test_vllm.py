"""Training with a real vLLM on the CPU (`make test-vllm`)."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.policy import resolve_model
from skyrl_gym.rollout import Trajectory, read_journal
from skyrl_gym.trainer.recipe import parse_recipe
from skyrl_gym.trainer.resume import journal_of
from skyrl_gym.trainer.samples import samples_of
from tests.policy.real_vllm import NEEDED, SCRIPT, START_S, RealVllm

pytestmark = NEEDED
DDP = Path(__file__).parents[2] / "recipes/accelerate/ddp.yaml"
STEPS = 3
ENV = {
    "id": "skyrl/memory-v0",
    "kwargs": {
        "families": ["niah_single"], "values": ["number"], "document_words": 16, "chunk_words": 60,
        "memory_words": 20, "worked_example": True, "max_invalid": 1,
    },
}  # fmt: skip


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[RealVllm, Path]]:
    """A server on a folder of its own, for the trainer to write to."""
    folder = tmp_path / "served"
    shutil.copytree(resolve_model("smollm2-135m"), folder)
    server = RealVllm(folder, tmp_path / "log")
    server.start()
    server.wait()
    yield server, folder
    server.kill()


def recipe(server: RealVllm, folder: Path, staleness: int) -> Any:
    return parse_recipe(
        {
            "name": "served",
            "model": "smollm2-135m",
            "env": ENV,
            "rollout": {
                "max_tokens": 40, "max_context": 1024, "server": server.url, "server_folder": str(folder),
                "staleness": staleness, "temperature": 0.7,
            },
            "train": {
                "max_steps": STEPS, "prompts_per_step": 2, "num_generations": 4, "per_device_train_batch_size": 4,
                "learning_rate": 2.0e-5, "importance_correction": "token_truncate",
            },
            "eval": {"tasks": 2, "samples": 1},
        }
    )  # fmt: skip


def weights_of(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def assert_trained(out: Path, folder: Path) -> list[dict[str, float]]:
    """Every step is there, no episode is missing or there twice, and the server ends with the trained weights."""
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    lines = [json.loads(line) for line in (out / "trajectories.jsonl").read_text().splitlines()]
    kept = Counter(line["sample"] for line in lines if "sample" in line)
    assert set(range(STEPS * 8)) <= set(kept), kept
    served, saved = weights_of(folder), weights_of(out / "model")
    assert served.keys() == saved.keys() and all(bool((served[name] == saved[name]).all()) for name in saved)
    return steps


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_model_is_trained_on_rollouts_of_the_server_that_takes_its_weights(
    served: tuple[RealVllm, Path], tmp_path: Path, staleness: int
) -> None:
    """Sampled in bf16 by one implementation and trained in mixed precision by another: of the same weights, the two
    are close."""
    from skyrl_gym.trainer.run import train

    out = tmp_path / "run"
    train(recipe(*served, staleness), out)
    for step in assert_trained(out, served[1]):
        assert step["excluded"] == 0
        assert step["staleness/max"] <= staleness
        if staleness == 0 and "sampling/kl" in step:
            assert step["sampling/kl"] < 0.005 and step["sampling/ratio_max"] < 3
    assert any("sampling/kl" in json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines())


def test_training_goes_on_when_its_server_is_killed_and_started_again(
    served: tuple[RealVllm, Path], tmp_path: Path
) -> None:
    from skyrl_gym.trainer.run import train

    server, folder = served
    out = tmp_path / "run"

    def restart() -> None:
        while not (out / "metrics.jsonl").exists():
            time.sleep(0.2)
        server.kill()
        server.start()

    killing = threading.Thread(target=restart, daemon=True)
    killing.start()
    train(recipe(server, folder, 1), out)
    killing.join()
    assert all(step["excluded"] == 0 for step in assert_trained(out, folder))


# ---- two processes that train, on one server


@pytest.fixture
def exact(tmp_path: Path) -> Iterator[tuple[RealVllm, Path]]:
    """As `served`, in fp32: what is sampled with a seed does not depend on what else is asked at the same time."""
    folder = tmp_path / "served"
    shutil.copytree(resolve_model("smollm2-135m"), folder)
    server = RealVllm(folder, tmp_path / "log", "--dtype", "float32")
    server.start()
    server.wait()
    yield server, folder
    server.kill()


def launched(place: Path, name: str, processes: int, server: RealVllm, folder: Path) -> Path:
    """A training of so many processes; the server holds the untrained model again when it begins."""
    changes = {
        "name": name,
        "rollout": {"max_tokens": 40, "max_context": 1024, "server": server.url, "server_folder": str(folder)},
        "train": {
            "max_steps": 2, "prompts_per_step": 2, "num_generations": 4, "per_device_train_batch_size": 2,
            "learning_rate": 2.0e-5, "bf16": False,
        },
        "eval": {"tasks": 0},
    }  # fmt: skip
    (place / f"{name}.yaml").write_text(json.dumps({"model": "smollm2-135m", "env": ENV, **changes}))
    words = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(DDP), "--mixed_precision", "no"]
    words += ["--num_processes", str(processes), "--main_process_port", "0", "-m", "skyrl_gym"]
    words += ["train", f"{name}.yaml", "--name", name]
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "ACCELERATE_TORCH_DEVICE": "cpu"}
    done = subprocess.run(
        words, cwd=place, capture_output=True, text=True, timeout=1_500, env={**os.environ, **quiet}, check=False
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return place / "runs" / name


def test_two_processes_share_one_server_and_take_the_steps_of_one(exact: tuple[RealVllm, Path], tmp_path: Path) -> None:
    """Weights are read once a step and not once a process, all see the same version, and nothing is played twice."""
    log, before = tmp_path / "log", len((tmp_path / "log").read_text())
    two = launched(tmp_path, "two", 2, *exact)
    calls = re.findall(r'"POST (\S+) HTTP/1.1" (\d+)', log.read_text()[before:])
    assert {status for _, status in calls} == {"200"}
    syncs = 2 + 2  # at the beginning, at each step, at the end
    count = Counter(call for call, _ in calls)
    assert (count["/collective_rpc"], count["/reset_prefix_cache"], count["/resume"]) == (syncs, syncs, 2 * syncs)
    one = launched(tmp_path, "one", 1, *exact)

    shares = [list(read_journal(journal_of(two, rank))) for rank in range(2)]
    assert [len(share) for share in shares] == [8, 8]
    for trajectory in (played := [trajectory for share in shares for trajectory in share]):
        step = trajectory.sample // 8
        assert {v for turn in trajectory.turns if turn.transition for v in turn.transition.versions} == {step}
    assert sorted(trajectory.sample for trajectory in played) == list(range(16))
    assert all(size == 4 for size in Counter(trajectory.group for trajectory in played).values())

    alone = {trajectory.sample: trajectory for trajectory in read_journal(journal_of(one, 0))}
    for trajectory in played:
        if trajectory.sample < 8:  # later ones are sampled from weights that differ by rounding
            assert sampled(trajectory) == sampled(alone[trajectory.sample])
    first, second = (json.loads((run / "metrics.jsonl").read_text().splitlines()[0]) for run in (one, two))
    for name in ("reward", "reward_std", "turns", "tokens", "loss", "grad_norm"):
        assert second[name] == pytest.approx(first[name], rel=1e-3, abs=1e-6), name


def sampled(trajectory: Trajectory) -> list[tuple[int, ...]]:
    return [turn.transition.sampled_ids for turn in trajectory.turns if turn.transition]


# ---- vLLM beside the process that trains


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the server that a training starts writes what it is asked."""
    program, log = tmp_path / "vllm", tmp_path / "asked"
    program.write_text(f'#!/bin/sh\nexec nice -n 10 {SCRIPT} "$@" >>{log} 2>&1\n')
    program.chmod(0o755)
    monkeypatch.setenv("SKYRL_VLLM", str(program))
    return log


def colocated() -> dict[str, Any]:
    """Steps that are large enough to tell weights of one step from those of the next."""
    return {
        "name": "colocated",
        "model": "smollm2-135m",
        "env": ENV,
        "rollout": {
            "max_tokens": 40, "max_context": 1024, "temperature": 0.7, "vllm_mode": "colocate",
            "vllm_gpu_memory_utilization": 0.1, "vllm_enable_sleep_mode": True,
        },
        "train": {
            "max_steps": STEPS, "prompts_per_step": 2, "num_generations": 4, "per_device_train_batch_size": 4,
            "learning_rate": 1.0e-4, "importance_correction": "token_truncate",
        },
        "eval": {"tasks": 4, "samples": 2},
    }  # fmt: skip


def asked(log: Path) -> list[str]:
    """The calls in order, completions that follow each other as one."""
    calls = re.findall(r'"POST (\S+) HTTP/1.1" (\d+)', log.read_text())
    assert {status for _, status in calls} == {"200"}
    return [call for call, _ in groupby(call for call, _ in calls)]


def processes_of(folder: Path) -> list[int]:
    """Whatever runs with a word in this folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in (entry / "cmdline").read_bytes() and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


def all_end(folder: Path) -> bool:
    until = time.monotonic() + 120
    while processes_of(folder) and time.monotonic() < until:
        time.sleep(0.2)
    return not processes_of(folder)


def distance_from(model: Path, journal: Path) -> float:
    """How far the logprobs that were recorded are from a model's, a token, on average."""
    import torch
    from transformers import AutoModelForCausalLM

    judge = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    total, count = 0.0, 0
    for trajectory in read_journal(journal):
        for sample in samples_of(trajectory, 0, 0.0):
            assert sample.logprobs is not None
            ids = torch.tensor([[*sample.prompt_ids, *sample.completion_ids]])
            with torch.no_grad():
                logps = judge(ids).logits[0, :-1].log_softmax(-1)
            found = logps.gather(1, ids[0, 1:, None])[-len(sample.completion_ids) :, 0]
            given = torch.tensor(sample.spread(sample.logprobs))
            mask = torch.tensor(sample.mask, dtype=torch.bool)
            total += float((found - given)[mask].abs().sum())
            count += int(mask.sum())
    return total / count


def test_a_vllm_beside_the_trainer_samples_from_its_weights_and_sleeps_while_it_trains(
    beside: Path, tmp_path: Path
) -> None:
    from skyrl_gym.trainer.run import train

    out = tmp_path / "run"
    train(parse_recipe(colocated()), out)
    completions, halt = "/v1/completions", "/pause?mode=abort"
    loaded = ["/collective_rpc", "/reset_prefix_cache"]
    first = [completions, *[halt, *loaded, "/resume", completions] * 2]
    woken = ["/wake_up?tags=weights", *loaded, "/wake_up?tags=kv_cache", "/resume", completions]
    assert asked(beside) == first + [halt, "/sleep?level=2", *woken] * STEPS
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    told = [step for step in steps if "sampling/kl" in step]
    assert told and all(step["sampling/kl"] < 0.005 and step["sampling/ratio_max"] < 3 for step in told)
    assert all(step["staleness/max"] == 0 and step["excluded"] == 0 for step in steps)
    after = out / "eval/after/trajectories.jsonl"
    trained, old = (distance_from(m, after) for m in (out / "model", resolve_model("smollm2-135m")))
    assert trained < 0.1 and old > 2 * trained, (trained, old)
    assert all_end(out / "served") and not (out / "served").exists()


def test_a_vllm_beside_a_trainer_that_is_killed_ends_with_it(beside: Path, tmp_path: Path) -> None:
    recipe, folder = tmp_path / "recipe.yaml", tmp_path / "runs/run/served"
    recipe.write_text(json.dumps({**colocated(), "eval": {"tasks": 0}}))
    words = [sys.executable, "-m", "skyrl_gym", "train", str(recipe), "--name", "run"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as trainer:
        until = time.monotonic() + START_S
        while "/sleep" not in (beside.read_text() if beside.exists() else "") and time.monotonic() < until:
            assert trainer.poll() is None, trainer.communicate()[1][-2_000:]
            time.sleep(0.2)
        assert processes_of(folder)
        trainer.kill()
    assert all_end(folder)
