"""Bigger than one device: shards, adapters on few bits, activations made again; the step stays that of one process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from skyrl_gym.chat.testing import tiny_tokenizer
from skyrl_gym.trainer.recipe import parse_recipe
from skyrl_gym.trainer.weights import plain_weights

pytestmark = pytest.mark.filterwarnings("default")
CONFIGS = Path(__file__).parents[2] / "recipes/accelerate"
PROGRAM = """
import importlib.util, json, pathlib, sys, warnings
warnings.simplefilter("ignore")
spec = importlib.util.spec_from_file_location("shared", sys.argv[1])
shared = importlib.util.module_from_spec(spec); spec.loader.exec_module(shared)
shared.torch.set_num_threads(1)
if shared.os.environ.get("ACCELERATE_USE_FSDP") == "true":
    # Accelerate gives shards to accelerators only: this machine is passed off as one with two of them.
    from accelerate import PartialState
    from accelerate.utils import DistributedType
    shared.torch.distributed.init_process_group("gloo")
    PartialState._prepare_backend = lambda *_: ("gloo", DistributedType.MULTI_GPU)
told = pathlib.Path(sys.argv[2])
settings = json.loads(sys.argv[3])
peft = settings.pop("peft", None) and shared.adapters()
source, held = shared.Recorded(forks=True), []
weights = shared.one_step(told, source, rows=4, peft=peft, kept=held.append, **settings)
whole = {name: float(value.double().sum()) for name, value in held[0].items()}
kinds = sorted({type(value).__name__ for value in weights.values()})
(told / f"told.{shared.os.environ['RANK']}.json").write_text(json.dumps({"whole": whole, "kinds": kinds}))
shared.torch.distributed.destroy_process_group()
"""


def on_two(folder: Path, config: str, timeout: float = 110, **settings: Any) -> list[Any]:
    """What two processes under a shipped configuration tell of their step."""
    script = folder / "step.py"
    script.write_text(PROGRAM)
    launch = ["-m", "accelerate.commands.launch", "--config_file", str(CONFIGS / config), "--num_processes", "2"]
    launch += ["--mixed_precision", "no", "--main_process_port", "0"]
    arguments = [str(script), str(Path(__file__).parent / "conftest.py"), str(folder), json.dumps(settings)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_TORCH_DEVICE": "cpu", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(
        [sys.executable, *launch, *arguments], capture_output=True, text=True, env=environment, timeout=timeout
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return [json.loads((folder / f"told.{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"peft": True}, marks=pytest.mark.slow),
        pytest.param({"gradient_checkpointing": True, "share_prefixes": False}, marks=pytest.mark.slow),
    ],
    ids=["all weights", "adapters", "activations made again"],
)
def test_two_processes_with_half_of_the_model_each_take_the_same_step_as_one(
    tmp_path: Path, tools: Any, settings: dict[str, Any]
) -> None:
    two = on_two(tmp_path, "fsdp2.yaml", **settings)
    assert all("DTensor" in told["kinds"] for told in two)
    held: list[Any] = []
    peft = tools.adapters() if settings.get("peft") else None
    tools.one_step(tmp_path / "one", tools.Recorded(forks=True), peft=peft, kept=held.append)
    for told in two:
        assert set(told["whole"]) == set(held[0])
        for name, total in told["whole"].items():
            assert total == pytest.approx(float(held[0][name].double().sum()), abs=2e-4), name


@pytest.mark.slow
@pytest.mark.timeout(620)
def test_zero3_takes_the_same_step_as_one_process(tmp_path: Path, tools: Any) -> None:
    """Its first run compiles DeepSpeed's communication for the CPU, some minutes."""
    pytest.importorskip("deepspeed")
    two = on_two(tmp_path, "zero3.yaml", timeout=600)
    held: list[Any] = []
    tools.one_step(tmp_path / "one", tools.Recorded(forks=True), kept=held.append)
    for name, total in two[0]["whole"].items():
        assert total == pytest.approx(float(held[0][name].double().sum()), abs=2e-4), name


@pytest.mark.parametrize("config", sorted(path.name for path in CONFIGS.glob("*.yaml")))
def test_accelerate_takes_the_shipped_configurations(config: str) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    assert load_config_from_file(str(CONFIGS / config)).num_processes == 8


@pytest.mark.parametrize("share", [True, False], ids=["shared prefixes", "row by row"])
@pytest.mark.parametrize("adapters", [False, True], ids=["all weights", "adapters"])
def test_activations_that_are_made_again_change_nothing(
    tmp_path: Path, tools: Any, share: bool, adapters: bool
) -> None:
    def step(name: str, again: bool) -> dict[str, torch.Tensor]:
        peft = tools.adapters() if adapters else None
        found: dict[str, torch.Tensor] = tools.one_step(
            tmp_path / name, tools.Recorded(forks=True), peft=peft, gradient_checkpointing=again, share_prefixes=share
        )
        return found

    assert tools.distance(step("a", True), step("b", False)) < 1e-6


@pytest.mark.slow
def test_adapters_on_a_model_in_four_bits_learn_by_steps_that_bf16_would_lose(tmp_path: Path, tools: Any) -> None:
    pytest.importorskip("bitsandbytes")
    from skyrl_gym.trainer.models import load_model, lora_config

    tools.tiny_model().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    lora = {"r": 4, "load_in_4bit": True, "target_modules": ["q_proj", "down_proj"]}
    recipe = parse_recipe({"name": "n", "model": str(tmp_path / "model"), "env": {"id": "e"}, "lora": lora})
    model, _ = load_model(recipe)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    held: list[Any] = []
    weights = tools.one_step(
        tmp_path / "out", tools.Recorded(forks=True), model=model, peft=lora_config(recipe.lora), kept=held.append,
        optim="adamw_torch", learning_rate=1e-5, max_steps=2,
    )  # fmt: skip
    learnt = {name: value for name, value in weights.items() if "lora_" in name}
    assert {value.dtype for value in learnt.values()} == {torch.float32}
    tops = [float(value.abs().max()) for name, value in learnt.items() if "lora_B" in name]
    assert all(0 < top < 3e-5 for top in tops)
    for name, value in weights.items():
        plain = name.removeprefix("base_model.model.").replace(".base_layer", "")
        assert "lora_" in name or torch.equal(value, before[plain]), name
    plain = tools.tiny_model().state_dict()
    assert {name: value.shape for name, value in held[0].items()} == {n: value.shape for n, value in plain.items()}
    far = {name: float((held[0][name].float() - plain[name]).abs().mean()) for name in plain}
    assert max(far.values()) < 0.01  # as near as 4 bits come to weights of 0.02


def test_weights_of_one_process_are_those_that_it_keeps(tmp_path: Path, tools: Any) -> None:
    held: list[Any] = []
    weights = tools.one_step(tmp_path, tools.Recorded(), kept=held.append)
    assert tools.distance(weights, held[0]) == 0
    assert set(plain_weights(tools.tiny_model())) == set(held[0])
