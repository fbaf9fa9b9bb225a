"""Training with a real vLLM on the CPU (`make test-vllm`)."""

import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.policy import resolve_model
from skyrl_gym.trainer.recipe import parse_recipe
from tests.policy.real_vllm import NEEDED, RealVllm

pytestmark = NEEDED
STEPS = 3


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
            "env": {
                "id": "skyrl/memory-v0",
                "kwargs": {
                    "families": ["niah_single"], "values": ["number"], "document_words": 16, "chunk_words": 60,
                    "memory_words": 20, "worked_example": True, "max_invalid": 1,
                },
            },
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
