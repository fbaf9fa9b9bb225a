"""One step of ours against one step of TRL's own trainer, and against itself cut differently."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from skyrl_gym.errors import ConfigError, RunAborted
from skyrl_gym.rollout import RolloutRequest

pytestmark = pytest.mark.filterwarnings("default")
LOSSES = ["grpo", "dapo", "dr_grpo", "cispo"]


def vanilla_step(folder: Path, tools: Any, loss_type: str) -> dict[str, torch.Tensor]:
    """TRL's GRPOTrainer on the same token ids, masks and rewards, handed in through its `rollout_func`."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from skyrl_gym.chat.testing import tiny_tokenizer

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        found: dict[str, list[Any]] = {name: [] for name in ("prompt_ids", "completion_ids", "env_mask", "score")}
        for position, prompt in enumerate(prompts):
            task = tools.TASKS.find(prompt)
            trajectory = tools.recorded(RolloutRequest("test", task, task.id, position % tools.GROUP))
            first, second = (turn.transition for turn in trajectory.turns)
            found["prompt_ids"].append(list(first.input_ids))
            found["completion_ids"].append([*first.sampled_ids, *second.input_ids, *second.sampled_ids])
            found["env_mask"].append(
                [1] * len(first.sampled_ids) + [0] * len(second.input_ids) + [1] * len(second.sampled_ids)
            )
            found["score"].append(trajectory.reward)
        return {**found, "logprobs": None}

    def reward(completions: list[Any], score: list[float], **_: Any) -> list[float]:
        return score

    config = GRPOConfig(
        output_dir=str(folder), per_device_train_batch_size=8, gradient_accumulation_steps=2, num_generations=4,
        max_steps=1, learning_rate=1.0, optim="sgd", max_grad_norm=1e9, lr_scheduler_type="constant", bf16=False,
        use_cpu=True, report_to="none", save_strategy="no", gradient_checkpointing=False, disable_tqdm=True,
        max_completion_length=32, temperature=1.0, seed=0, loss_type=loss_type,
    )  # fmt: skip
    rows = Dataset.from_dict({"prompt": [task.id for task in tools.TASKS]})
    trainer = GRPOTrainer(
        model=tools.tiny_model(), args=config, train_dataset=rows, reward_funcs=reward,
        processing_class=tiny_tokenizer(), rollout_func=rollout_func,
    )  # fmt: skip
    trainer.train()
    return {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}


@pytest.mark.parametrize("loss_type", LOSSES)
def test_one_step_equals_trls_own(tmp_path: Path, tools: Any, loss_type: str) -> None:
    start = tools.tiny_model().state_dict()
    theirs = vanilla_step(tmp_path / "trl", tools, loss_type)
    ours = tools.one_step(tmp_path / "ours", tools.Recorded(), loss_type=loss_type)
    moved = tools.distance(start, theirs)
    assert moved > 1e-3
    assert tools.distance(ours, theirs) < 1e-5 * max(1.0, moved)


@pytest.mark.parametrize("loss_type", LOSSES)
@pytest.mark.parametrize("forks", [False, True])
def test_the_step_does_not_depend_on_how_rows_are_cut(tmp_path: Path, tools: Any, loss_type: str, forks: bool) -> None:
    steps = [
        tools.one_step(tmp_path / str(rows), tools.Recorded(forks=forks), rows=rows, loss_type=loss_type)
        for rows in (16, 4, 2)
    ]
    assert tools.distance(steps[0], steps[1]) < 1e-5
    assert tools.distance(steps[0], steps[2]) < 1e-5


def test_merged_and_unmerged_turns_give_the_same_step(tmp_path: Path, tools: Any) -> None:
    merged = tools.one_step(tmp_path / "a", tools.Recorded(), loss_type="dapo")
    apart = tools.one_step(tmp_path / "b", tools.Recorded(forks=True), loss_type="dapo")
    assert tools.distance(merged, apart) < 1e-5
    assert tools.distance(merged, tools.tiny_model().state_dict()) > 1e-3


def test_excluded_trajectories_leave_no_trace(tmp_path: Path, tools: Any) -> None:
    """With one of a group excluded, the step is that of the rest: no row, no baseline."""
    some = tools.one_step(tmp_path / "a", tools.Recorded(excluded=frozenset({0, 5})))
    everything = tools.one_step(tmp_path / "b", tools.Recorded())
    assert tools.distance(some, everything) > 1e-4
    again = tools.one_step(tmp_path / "c", tools.Recorded(excluded=frozenset({0, 5})), rows=4)
    assert tools.distance(some, again) < 1e-5


def test_without_a_signal_the_optimizer_stands_still(tmp_path: Path, tools: Any) -> None:
    class Constant(tools.Recorded):  # type: ignore[misc]
        def collect(self, requests: Any) -> Any:
            from dataclasses import replace

            return [replace(t, reward=1.0) for t in super().collect(requests)]

    assert tools.distance(tools.one_step(tmp_path, Constant()), tools.tiny_model().state_dict()) == 0.0


def test_batches_without_a_valid_trajectory_end_the_run(tmp_path: Path, tools: Any) -> None:
    with pytest.raises(RunAborted, match="1 batches in a row had no valid trajectory"):
        tools.one_step(tmp_path, tools.Recorded(excluded=frozenset(range(16))), max_empty_batches=1)


def test_importance_correction_needs_logprobs(tmp_path: Path, tools: Any) -> None:
    with pytest.raises(ConfigError, match="needs the policy's logprobs"):
        tools.one_step(tmp_path, tools.Recorded(), importance_correction=True)


def test_importance_weights_differ_from_1_when_the_sampler_does(tmp_path: Path, tools: Any) -> None:
    class WithLogprobs(tools.Recorded):  # type: ignore[misc]
        def collect(self, requests: Any) -> Any:
            from dataclasses import replace

            def given(turn: Any) -> Any:
                step = turn.transition
                return replace(turn, transition=replace(step, logprobs=tuple(-3.0 for _ in step.sampled_ids)))

            return [replace(t, turns=tuple(map(given, t.turns))) for t in super().collect(requests)]

    corrected = tools.one_step(tmp_path / "a", WithLogprobs(), importance_correction=True)
    plain = tools.one_step(tmp_path / "b", tools.Recorded())
    assert tools.distance(corrected, plain) > 1e-4


def test_settings_that_trl_would_take_but_we_cannot_are_refused(tmp_path: Path, tools: Any) -> None:
    with pytest.raises(ConfigError, match="num_iterations is 1"):
        tools.one_step(tmp_path, tools.Recorded(), num_iterations=2)


PROGRAM = """
import importlib.util, json, pathlib, sys, warnings
warnings.simplefilter("ignore")
spec = importlib.util.spec_from_file_location("shared", sys.argv[1])
shared = importlib.util.module_from_spec(spec); spec.loader.exec_module(shared)
shared.torch.set_num_threads(1)
weights = shared.one_step(pathlib.Path(sys.argv[2]), shared.Recorded(), rows=4, loss_type=sys.argv[3])
if int(shared.os.environ.get("RANK", "0")) == 0:
    print("WEIGHTS" + json.dumps({n: float(w.double().sum()) for n, w in weights.items()}))
"""


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_two_processes_take_the_same_step_as_one(tmp_path: Path, tools: Any, loss_type: str) -> None:
    script = tmp_path / "step.py"
    script.write_text(PROGRAM)
    arguments = [str(script), str(Path(__file__).parent / "conftest.py"), str(tmp_path / "out"), loss_type]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run([*launch, *arguments], capture_output=True, text=True, env=environment, timeout=110)
    found = [line for line in done.stdout.splitlines() if "WEIGHTS" in line]
    assert found, done.stderr[-3_000:]
    two = json.loads(found[0].split("WEIGHTS")[1])
    one = tools.one_step(tmp_path / "one", tools.Recorded(), rows=8, loss_type=loss_type)
    for name, total in two.items():
        assert total == pytest.approx(float(one[name].double().sum()), abs=2e-4), name
