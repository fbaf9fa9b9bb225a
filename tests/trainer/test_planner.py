"""`skyrl plan`: every shipped recipe fits its hardware, and what can't fit is refused with the reason."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from skyrl_gym.errors import ConfigError
from skyrl_gym.trainer.planner import GB, make_plan
from skyrl_gym.trainer.recipe import load_recipe

RECIPES = Path(__file__).parents[2] / "recipes"
# Sizes as the models' own configurations give them.
QWEN3: dict[str, Any] = {
    "model_type": "qwen3", "vocab_size": 151936, "max_position_embeddings": 40960, "head_dim": 128,
    "num_key_value_heads": 8,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-32B": {
        "hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64, "num_attention_heads": 64,
    },
    "Qwen/Qwen3-8B": {
        "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
    },
    "Qwen/Qwen3-4B-Instruct-2507": {
        "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
        "tie_word_embeddings": True,
    },
    "smollm2-135m": {
        "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "head_dim": 64,
        "max_position_embeddings": 8192, "tie_word_embeddings": True,
    },
}  # fmt: skip
SIZES = {"Qwen/Qwen3-32B": 32.8, "Qwen/Qwen3-8B": 8.2, "Qwen/Qwen3-4B-Instruct-2507": 4.0, "smollm2-135m": 0.135}


@pytest.fixture
def plan(tmp_path: Path) -> Any:
    def make(name: str, **settings: Any) -> Any:
        file = RECIPES / name
        model = yaml.safe_load(file.read_text())["model"]
        (tmp_path / "config.json").write_text(json.dumps({**QWEN3, **MODELS[model]}))
        changes = {key.replace("__", "."): value for key, value in settings.items()}
        return make_plan(load_recipe(file, {"model": str(tmp_path), **changes})), SIZES[model]

    return make


@pytest.mark.parametrize("file", sorted(path.name for path in RECIPES.glob("*.yaml")))
def test_every_shipped_recipe_fits_its_hardware(plan: Any, file: str) -> None:
    found, billions = plan(file)
    assert found.faults == ()
    assert found.parameters / 1e9 == pytest.approx(billions, rel=0.02)
    assert 0 < found.trained <= found.parameters
    assert all(device.fits for device in found.devices)


def test_the_papers_recipe_has_the_papers_numbers() -> None:
    recipe = load_recipe(RECIPES / "sa_swe_32b.yaml")
    train = recipe.train
    assert (train.prompts_per_step, train.num_generations, train.learning_rate, train.beta) == (64, 8, 1e-6, 0.0)
    assert (train.advantage, train.loss_type) == ("leave_one_out", "dr_grpo")
    assert {"max_turns", "context_full"} <= set(train.mask_endings)
    assert recipe.environments[0].kwargs["max_turns"] == 50
    assert recipe.rollout.max_context == 32_768 + 8_000


@pytest.mark.parametrize(
    ("file", "settings", "says"),
    [
        ("sa_swe_32b.yaml", {"hardware__gpus": 8}, "each of 8 training GPUs would hold .* GB of 73.6 usable"),
        ("sa_swe_32b.yaml", {"hardware__sharding": "none"}, "most of it gradients and optimizer"),
        ("sa_swe_32b.yaml", {"hardware__memory_gb": 20}, "each of 8 sampling GPUs would hold"),
        ("sa_swe_32b.yaml", {"rollout__server": None}, "sampling_gpus and rollout.server go together"),
        ("sa_swe_32b.yaml", {"rollout__max_context": 65_536}, "beyond the model's 40960 positions"),
        ("sa_swe_32b.yaml", {"hardware__tensor_parallel": 3}, "tensor_parallel 3 divides neither"),
        ("single_gpu_24gb.yaml", {"lora__load_in_4bit": False}, "GB of 22.1 usable"),
        ("single_gpu_24gb.yaml", {"hardware__sharding": "fsdp2"}, "fsdp2 takes two GPUs or more"),
        ("swe_8gpu.yaml", {"hardware__gpus": 3}, "no multiple of per_device_train_batch_size x GPUs = 3"),
        ("swe_8gpu.yaml", {"hardware__gpus": 32}, "prompts_per_step is a multiple of the 32 GPUs"),
        ("memory_8gpu.yaml", {"rollout__close_groups_at": 6}, "close_groups_at on 8 GPUs takes a rollout.staleness"),
        ("quickstart.yaml", {"hardware__memory_gb": 1}, "the machine would hold"),
        (
            "single_gpu_24gb_vllm.yaml",
            {"rollout__vllm_gpu_memory_utilization": 0.3},
            r"vLLM needs 10.* and rollout.vllm_gpu_memory_utilization 0.3 gives it 7.2 GB",
        ),
        (
            "single_gpu_24gb_vllm.yaml",
            {"rollout__vllm_gpu_memory_utilization": 0.9},
            "each of 1 training GPUs, sampling would hold .* most of it vLLM's share",
        ),
        (
            "single_gpu_24gb_vllm.yaml",
            {"rollout__vllm_enable_sleep_mode": False, "rollout__vllm_gpu_memory_utilization": 0.8},
            "each of 1 training GPUs would hold .* most of it vLLM's share",
        ),
        (
            "single_gpu_24gb_vllm.yaml",
            {"lora__load_in_4bit": False},
            "each of 1 training GPUs, sampling would hold .* GB of 22.1 usable",
        ),
        (
            "single_gpu_24gb_vllm.yaml",
            {"hardware__tensor_parallel": 2},
            "whole model on each GPU: .*tensor_parallel is 1",
        ),
        ("single_gpu_24gb_vllm.yaml", {"hardware__sampling_gpus": 1}, "sampling_gpus and rollout.server go together"),
    ],
)
def test_what_cannot_fit_is_refused_with_the_reason(plan: Any, file: str, settings: Any, says: str) -> None:
    import re

    found, _ = plan(file, **settings)
    assert any(re.search(says, fault) for fault in found.faults), found.faults


def test_a_model_that_cannot_be_read_is_told_with_the_way_without_the_hub(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"configuration of {tmp_path}: .+ config.json .+ --model FOLDER"):
        make_plan(load_recipe(RECIPES / "quickstart.yaml", {"model": str(tmp_path)}))


def test_more_devices_and_checkpointing_never_need_more_memory(plan: Any) -> None:
    totals = [plan("sa_swe_32b.yaml", hardware__gpus=gpus)[0].devices[0].total for gpus in (2, 4, 8, 16, 32)]
    assert totals == sorted(totals, reverse=True)
    with_, without = (plan("swe_8gpu.yaml", train__gradient_checkpointing=on)[0] for on in (True, False))
    assert with_.devices[0].total < without.devices[0].total - 10 * GB


def test_a_gpu_that_trains_and_samples_by_turns_is_planned_for_either_time(plan: Any) -> None:
    training, sampling = plan("single_gpu_24gb_vllm.yaml")[0].devices
    assert training.device.endswith("training") and sampling.device.endswith("sampling")
    assert {"activations", "gradients and optimizer", "vLLM asleep"} <= training.parts.keys()
    assert sampling.parts.keys() == {"weights", "optimizer", "vLLM's share"}
    assert sampling.parts["vLLM's share"] == 0.6 * 24 * GB
    (always,) = plan("single_gpu_24gb_vllm.yaml", rollout__vllm_enable_sleep_mode=False)[0].devices
    assert always.total > max(training.total, sampling.total)
    on_cpu = plan("single_gpu_24gb_vllm.yaml", hardware__gpus=0)[0].devices
    assert [device.parts for device in on_cpu] == [always.parts], "a CPU gives no memory back"


@pytest.mark.parametrize("file", sorted((RECIPES / "accelerate").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_launcher_takes_the_configurations(file: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(file))
    assert (config.num_processes, config.mixed_precision) == (8, "bf16")
    kind = {"ddp": "MULTI_GPU", "fsdp2": "FSDP", "zero3": "DEEPSPEED"}[file.stem]
    assert config.distributed_type == kind
