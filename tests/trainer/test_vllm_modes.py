"""Training with vLLM, against a stand-in: beside each process, or one server for several.

Who has the memory when, when weights are read, and that no server outlives its run."""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.rollout import Trajectory, read_journal
from skyrl_gym.trainer.colocated import server_environment
from skyrl_gym.trainer.resume import journal_of
from tests.trainer.say import GROUPS, SIZE, STEPS, run, trajectories
from tests.trainer.vllm_stub import digest

STUB = Path(__file__).with_name("vllm_stub.py")
DDP = Path(__file__).parents[2] / "recipes/accelerate/ddp.yaml"
HALTED = ["/pause?mode=abort", "/collective_rpc", "/reset_prefix_cache", "/resume"]
WOKEN = ["/wake_up?tags=weights", "/collective_rpc", "/reset_prefix_cache", "/wake_up?tags=kv_cache", "/resume"]
ASLEEP = ["/pause?mode=abort", "/sleep?level=2"]
ASKED = "/v1/completions"


@pytest.fixture
def notes(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where each server writes what it was told."""
    folder = place / "notes"
    folder.mkdir()
    monkeypatch.setenv("SKYRL_VLLM", shlex.join([sys.executable, str(STUB)]))
    monkeypatch.setenv("VLLM_STUB_NOTES", str(folder))
    ask_for(place, vllm_mode="colocate", vllm_enable_sleep_mode=True, max_context=200)
    yield folder
    for server in servers(folder):
        assert gone(server[0]["pid"])


def ask_for(place: Path, **rollout: Any) -> None:
    recipe = json.loads((place / "recipe.yaml").read_text())
    (place / "recipe.yaml").write_text(json.dumps({**recipe, "rollout": {"max_tokens": 12, **rollout}}))


def servers(notes: Path) -> list[list[dict[str, Any]]]:
    """What each was started with, and what it was told."""
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in sorted(notes.glob("*.jsonl"))]


def calls(server: list[dict[str, Any]]) -> list[str]:
    """In order, completions that follow each other as one."""
    assert [entry for entry in server[1:] if entry["status"] != 200] == []
    return [call for call, many in groupby(entry["call"] for entry in server[1:])]


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


TRAIN = ["-m", "skyrl_gym", "train", "recipe.yaml", "--registry", "registry.yaml", "--name", "one"]
BY_TWO = ["-m", "accelerate.commands.launch", "--config_file", str(DDP), "--num_processes", "2"]
BY_TWO += ["--mixed_precision", "no", "--main_process_port", "0", *TRAIN]


def test_each_step_wakes_the_server_gives_it_the_weights_samples_and_puts_it_to_sleep(place: Path, notes: Path) -> None:
    done = run(place, *TRAIN)
    assert done.returncode == 0, done.stderr[-3_000:]
    (server,) = servers(notes)
    first = [ASKED, *HALTED, ASKED, *HALTED, ASKED, *ASLEEP]  # one token, an evaluation, a step
    assert calls(server) == first + [*WOKEN, ASKED, *ASLEEP] * (STEPS - 1) + [*WOKEN, ASKED]
    read = [entry["read"] for entry in server[1:] if entry["read"]]
    assert len(read) == STEPS + 2 and len(set(read)) == STEPS + 1, "each step has weights of its own"
    folder = place / "runs/one"
    assert read[-1] == digest(folder / "model")
    assert not (folder / "served").exists()
    words = server[0]["words"]
    assert words[:2] == ["serve", str(folder / "served")] and "--enable-sleep-mode" in words
    assert words[words.index("--gpu-memory-utilization") + 1] == "0.3"
    assert words[words.index("--max-model-len") + 1] == "200"
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
    assert all(step["staleness/max"] == 0 and step["excluded"] == 0 for step in steps)


def test_without_sleep_mode_the_server_never_sleeps(place: Path, notes: Path) -> None:
    done = run(place, *TRAIN, "--set", "rollout.vllm_enable_sleep_mode=false", "--set", "eval.tasks=0")
    assert done.returncode == 0, done.stderr[-3_000:]
    (server,) = servers(notes)
    assert "--enable-sleep-mode" not in server[0]["words"]
    assert calls(server) == [ASKED, *HALTED] + [*HALTED, ASKED] * STEPS + HALTED


def train_by_two(place: Path) -> list[Trajectory]:
    """What two processes played: each trajectory once, whole groups."""
    done = run(place, *BY_TWO, ACCELERATE_TORCH_DEVICE="cpu")
    assert done.returncode == 0, done.stderr[-3_000:]
    played = trajectories(place / "runs/one")
    groups = json.loads((place / "runs/one/steps.jsonl").read_text().splitlines()[-1])["groups"]
    assert groups >= STEPS * GROUPS
    assert sorted(t.sample for t in played) == list(range(groups * SIZE)), "none twice, none left out"
    shares = [list(read_journal(journal_of(place / "runs/one", rank))) for rank in range(2)]
    assert len(shares[0]) == len(shares[1])
    return played


def test_each_process_has_a_server_of_its_own_that_knows_nothing_of_the_others(place: Path, notes: Path) -> None:
    train_by_two(place)
    two = servers(notes)
    assert len(two) == 2
    for server in two:
        told = server[0]["environment"]
        assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"} & told.keys()
        assert not [name for name in told if name.startswith(("TORCHELASTIC_", "ACCELERATE_"))]
        assert calls(server).count("/sleep?level=2") == STEPS
    read = [[entry["read"] for entry in server[1:] if entry["read"]] for server in two]
    assert read[0] == read[1] and len(set(read[0])) == STEPS + 1, "the same weights at each step"


def test_two_processes_share_one_server_that_reads_the_weights_once_a_step(place: Path, notes: Path) -> None:
    folder, port = place / "shared", free_port()
    shutil.copytree(place / "model", folder)
    ask_for(place, server=f"http://127.0.0.1:{port}/v1", server_folder=str(folder))
    words = ["serve", str(folder), "--port", str(port), "--served-model-name", str(folder)]
    with subprocess.Popen([sys.executable, str(STUB), *words]) as process:
        try:
            played = train_by_two(place)
        finally:
            process.kill()
    (server,) = servers(notes)
    asked = [entry["call"] for entry in server[1:] if entry["call"] != ASKED]
    both = ["/pause?mode=abort"] * 2 + ["/collective_rpc", "/reset_prefix_cache"] + ["/resume"] * 2
    assert asked == both * (STEPS + 2), "at the beginning, at each step and at the end"
    assert {entry["status"] for entry in server[1:]} == {200}
    read = [entry["read"] for entry in server[1:] if entry["read"]]
    assert len(set(read)) == STEPS + 1 and read[-1] == digest(place / "runs/one/model")
    drawn = [json.loads(line)["groups"] for line in (place / "runs/one/steps.jsonl").read_text().splitlines()]
    for trajectory in played:
        step = bisect_right(drawn, trajectory.sample // SIZE)
        assert {v for turn in trajectory.turns if turn.transition for v in turn.transition.versions} == {step}


@pytest.mark.parametrize("words", [TRAIN, pytest.param(BY_TWO, marks=pytest.mark.slow)], ids=["alone", "one of two"])
def test_a_server_that_dies_ends_the_run_with_the_reason(place: Path, notes: Path, words: list[str]) -> None:
    with started(place, words) as trainer:
        os.kill(first_asked(notes), signal.SIGKILL)
        _, said = trainer.communicate(timeout=200)
    assert trainer.returncode == 1
    assert "vLLM ended" in said


def test_a_server_that_finds_no_memory_to_wake_up_in_ends_the_run_with_what_it_said(
    place: Path, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_STUB_FAILS_AT", "/wake_up")
    done = run(place, *TRAIN, "--set", "eval.tasks=0")
    assert done.returncode == 1
    assert "the server answered 500" in done.stderr and "no memory to wake up in" in done.stderr
    steps = (place / "runs/one/metrics.jsonl").read_text().splitlines()
    assert len(steps) == 1, "the step before it stands"


def test_a_killed_trainer_takes_its_server_along(place: Path, notes: Path) -> None:
    with started(place, TRAIN) as trainer:
        server = first_asked(notes)
        trainer.kill()
    assert gone(server)


def started(place: Path, words: list[str]) -> subprocess.Popen[str]:
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", "TERM": "dumb"}
    quiet |= {"ACCELERATE_TORCH_DEVICE": "cpu"}
    return subprocess.Popen(
        [sys.executable, *words, "--set", "train.max_steps=1000"], cwd=place, env={**os.environ, **quiet},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def first_asked(notes: Path) -> int:
    """The server, once it has been put to sleep for the first time."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        if found := [file for file in notes.glob("*.jsonl") if "/sleep" in file.read_text()]:
            return int(found[0].stem)
        time.sleep(0.05)
    raise AssertionError("no server was asked for anything")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


LAUNCHED = {
    "PATH": "/bin",
    "HF_HOME": "/models",
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "1",
    "OMP_NUM_THREADS": "1",
    "TORCHELASTIC_RUN_ID": "x",
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
}


@pytest.mark.parametrize(
    ("visible", "on_gpu", "gpu"),
    [
        (None, True, "1"),
        ("4,5", True, "5"),
        ("GPU-aa, GPU-bb", True, "GPU-bb"),
        ("", True, "1"),
        (None, False, None),
        ("4,5", False, "4,5"),
    ],
)
def test_a_server_gets_its_processs_gpu_and_nothing_that_the_launcher_said(
    visible: str | None, on_gpu: bool, gpu: str | None
) -> None:
    given = LAUNCHED if visible is None else {**LAUNCHED, "CUDA_VISIBLE_DEVICES": visible}
    expected = {"PATH": "/bin", "HF_HOME": "/models", "VLLM_SERVER_DEV_MODE": "1"}
    assert server_environment(given, on_gpu) == (expected if gpu is None else {**expected, "CUDA_VISIBLE_DEVICES": gpu})
