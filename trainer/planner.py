"""What a recipe needs of its hardware, from the model's configuration alone.

The figures are estimates that err on the high side: of AdamW in fp32 with bf16 passes, as `skyrl train` does it,
and of a loss whose head is fused, so that no logits are held.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from skyrl_gym.errors import ConfigError
from skyrl_gym.policy import resolve_model
from skyrl_gym.policy.transformers import CACHE_TOKENS
from skyrl_gym.trainer.recipe import Recipe

__all__ = ["Memory", "Plan", "make_plan"]

GB = 2**30
USABLE = 0.92  # of a device: the rest goes to the driver, to fragments and to communication
ASLEEP_BYTES = 2.0 * GB  # of a vLLM that sleeps: its CUDA context and graphs
LAYER_BYTES = 34  # of activations a token and hidden unit, in bf16, without the attention's square


@dataclass(frozen=True)
class Memory:
    """What one device holds: bytes by purpose, and what there is."""

    device: str
    parts: dict[str, float]
    available: float

    @property
    def total(self) -> float:
        """Bytes of all parts."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """There is room for all of it."""
        return self.total <= self.available * USABLE


@dataclass(frozen=True)
class Plan:
    """A recipe on its hardware."""

    parameters: int
    trained: int
    trajectories: int
    layout: tuple[str, ...]
    devices: tuple[Memory, ...]
    faults: tuple[str, ...]


def make_plan(recipe: Recipe) -> Plan:
    """The memory and layout of a recipe; whatever can't work is in `faults`.

    Raises:
        ConfigError: the model's configuration can't be read.
    """
    config = _model_config(recipe)
    parameters, adapters = _count(recipe, config)
    trained = adapters if recipe.lora else parameters
    hardware = recipe.hardware
    devices = list(_training(recipe, config, parameters, trained))
    if hardware.sampling_gpus:
        devices.append(_serving(recipe, config, parameters))
    return Plan(
        parameters,
        trained,
        recipe.train.prompts_per_step * recipe.train.num_generations,
        _layout(recipe),
        tuple(devices),
        (
            *_misfits(recipe, config),
            *_small_share(recipe, config, parameters),
            *(_overflow(device) for device in devices if not device.fits),
        ),
    )


def _model_config(recipe: Recipe) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(str(resolve_model(recipe.model)))
    except (OSError, ValueError) as error:
        told = f"can't read the configuration of {recipe.model}: {str(error).splitlines()[0]}"
        raise ConfigError(f"{told} A folder with its config.json does without the hub: --model FOLDER") from error


def _count(recipe: Recipe, config: Any) -> tuple[int, int]:
    """Parameters of the model, and of the adapters on it."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    adapters = 0
    if recipe.lora is not None:
        targets = recipe.lora.target_modules
        for name, module in model.named_modules():
            last = name.rpartition(".")[2]
            wanted = last != "lm_head" if targets == "all-linear" else last in targets
            if isinstance(module, torch.nn.Linear) and wanted:
                adapters += recipe.lora.r * (module.in_features + module.out_features)
    return sum(parameter.numel() for parameter in model.parameters()), adapters


def _training(recipe: Recipe, config: Any, parameters: int, trained: int) -> tuple[Memory, ...]:
    """One device that trains; twice where it also samples by turns, with what it holds at either time."""
    hardware, world = recipe.hardware, max(1, recipe.hardware.gpus)
    shards = world if hardware.sharding != "none" else 1
    four_bits = recipe.lora is not None and recipe.lora.load_in_4bit
    frozen = parameters if recipe.lora else 0
    layer = parameters / config.num_hidden_layers
    parts = {
        "weights": (frozen * (0.6 if four_bits else 4) + trained * 4) / shards,
        "gradients and optimizer": trained * 12 / shards,
        "activations": _activations(recipe, config),
    }
    if shards > 1:
        parts["gathered layers"] = 2 * 2 * layer
    if recipe.train.beta and recipe.lora is None:
        parts["reference model"] = parameters * 4 / shards
    name = f"each of {hardware.gpus} training GPUs" if hardware.gpus else "the machine"
    available = hardware.memory_gb * GB
    if recipe.rollout.vllm_mode == "colocate":
        share = recipe.rollout.vllm_gpu_memory_utilization * available
        if not _sleeps(recipe):
            return (Memory(name, parts | {"vLLM's share": share}, available),)
        held = {"weights": parts["weights"], "optimizer": trained * 8 / shards}
        held |= {part: size for part, size in parts.items() if part == "reference model"}
        return (
            Memory(f"{name}, training", parts | {"vLLM asleep": ASLEEP_BYTES}, available),
            Memory(f"{name}, sampling", held | {"vLLM's share": share}, available),
        )
    if recipe.rollout.server is None:
        tokens = _context(recipe, config) * min(-(-recipe.rollout.live // world), 64)
        parts["sampling copy"] = parameters * 2
        parts["its KV cache"] = _kv_bytes(config) * max(tokens, CACHE_TOKENS)
    return (Memory(name, parts, available),)


def _serving(recipe: Recipe, config: Any, parameters: int) -> Memory:
    hardware = recipe.hardware
    parts = _server_parts(recipe, config, parameters)
    return Memory(f"each of {hardware.sampling_gpus} sampling GPUs", parts, hardware.memory_gb * GB)


def _server_parts(recipe: Recipe, config: Any, parameters: int) -> dict[str, float]:
    """The least that a server can answer with, on each of its GPUs."""
    gpus = recipe.hardware.tensor_parallel
    return {
        "weights": parameters * 2 / gpus,
        "KV cache of one trajectory": _kv_bytes(config) * _context(recipe, config) / gpus,
        "passes": 2.0 * GB,
    }


def _activations(recipe: Recipe, config: Any) -> float:
    tokens = recipe.train.per_device_train_batch_size * _context(recipe, config)
    if recipe.train.max_forward_tokens is not None:  # a longer sequence has a pass of its own
        tokens = min(tokens, max(recipe.train.max_forward_tokens, _context(recipe, config)))
    hidden, layers = int(config.hidden_size), int(config.num_hidden_layers)
    if recipe.train.gradient_checkpointing:
        return float(tokens * hidden * (LAYER_BYTES + 2 * layers))
    return float(tokens * hidden * LAYER_BYTES * layers)


def _context(recipe: Recipe, config: Any) -> int:
    return int(recipe.rollout.max_context or config.max_position_embeddings)


def _kv_bytes(config: Any) -> float:
    """Of one token, in bf16."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2.0 * int(config.num_hidden_layers) * int(heads) * int(size) * 2


def _layout(recipe: Recipe) -> tuple[str, ...]:
    hardware = recipe.hardware
    trains = f"{hardware.gpus} GPUs" if hardware.gpus else "the CPU"
    sharded = {"none": "", "fsdp2": ", sharded by FSDP2", "zero3": ", sharded by ZeRO-3"}[hardware.sharding]
    samples = "a copy of the model in each training process"
    if recipe.rollout.vllm_mode == "colocate":
        share = f"{recipe.rollout.vllm_gpu_memory_utilization:.0%} of the memory"
        samples = f"vLLM beside each training process, on {share}{', asleep while it trains' * _sleeps(recipe)}"
    if hardware.sampling_gpus:
        copies = hardware.sampling_gpus // hardware.tensor_parallel
        samples = f"vLLM on {hardware.sampling_gpus} GPUs: {copies} x tensor parallel {hardware.tensor_parallel}"
    ahead = recipe.rollout.staleness
    when = f"while training goes on, up to {ahead} steps behind" if ahead else "by turns with training"
    launch = f"skyrl train ... on {trains}"
    if hardware.gpus > 1:
        file = {"none": "ddp", "fsdp2": "fsdp2", "zero3": "zero3"}[hardware.sharding]
        launch = f"accelerate launch --config_file recipes/accelerate/{file}.yaml --num_processes {hardware.gpus} ..."
    return (f"training: {trains}{sharded}", f"sampling: {samples}, {when}", f"start: {launch}")


def _misfits(recipe: Recipe, config: Any) -> list[str]:
    hardware, world = recipe.hardware, max(1, recipe.hardware.gpus)
    trajectories = recipe.train.prompts_per_step * recipe.train.num_generations
    found = []
    if trajectories % (recipe.train.per_device_train_batch_size * world):
        found.append(
            f"{trajectories} trajectories a step are no multiple of per_device_train_batch_size x GPUs = "
            f"{recipe.train.per_device_train_batch_size * world}"
        )
    if recipe.rollout.staleness and recipe.train.prompts_per_step % world:
        found.append(f"with a staleness, prompts_per_step is a multiple of the {world} GPUs")
    if recipe.closes_groups_spread_over(world):
        found.append(f"rollout.close_groups_at on {world} GPUs takes a rollout.staleness: it shares out whole groups")
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") == "default" and _context(recipe, config) > config.max_position_embeddings:
        found.append(
            f"rollout.max_context {recipe.rollout.max_context} is beyond the model's "
            f"{config.max_position_embeddings} positions"
        )
    if recipe.rollout.vllm_mode == "colocate" and hardware.tensor_parallel > 1:
        found.append("rollout.vllm_mode colocate has a whole model on each GPU: hardware.tensor_parallel is 1")
    if bool(hardware.sampling_gpus) != (recipe.rollout.server is not None):
        found.append("hardware.sampling_gpus and rollout.server go together")
    if hardware.sampling_gpus % hardware.tensor_parallel or config.num_attention_heads % hardware.tensor_parallel:
        found.append(f"tensor_parallel {hardware.tensor_parallel} divides neither GPUs nor heads evenly")
    if hardware.sharding != "none" and hardware.gpus < 2:
        found.append(f"sharding {hardware.sharding} takes two GPUs or more")
    if hardware.sharding != "none" and recipe.lora is not None and recipe.lora.load_in_4bit:
        found.append("weights in 4 bits are not sharded: train with sharding none")
    return found


def _sleeps(recipe: Recipe) -> bool:
    """vLLM gives its memory back while training goes on; a CPU's it keeps, whatever it is told."""
    return recipe.rollout.vllm_enable_sleep_mode and recipe.hardware.gpus > 0


def _small_share(recipe: Recipe, config: Any, parameters: int) -> list[str]:
    """What vLLM needs of a GPU that trains too, against what it is given."""
    if recipe.rollout.vllm_mode != "colocate":
        return []
    needed = sum(_server_parts(recipe, config, parameters).values())
    share = recipe.rollout.vllm_gpu_memory_utilization
    given = share * recipe.hardware.memory_gb * GB
    if needed <= given:
        return []
    return [
        f"vLLM needs {needed / GB:.1f} GB for weights, one trajectory and its passes, and "
        f"rollout.vllm_gpu_memory_utilization {share:g} gives it {given / GB:.1f} GB"
    ]


def _overflow(device: Memory) -> str:
    return (
        f"{device.device} would hold {device.total / GB:.1f} GB of {device.available * USABLE / GB:.1f} usable, "
        f"most of it {max(device.parts, key=device.parts.__getitem__)}"
    )
