"""The model that is trained and the copy that samples."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from skyrl_gym.background import BackgroundLoop
from skyrl_gym.chat import Renderer
from skyrl_gym.errors import ConfigError, MissingDependency
from skyrl_gym.policy import Prompt, Sampling, resolve_model
from skyrl_gym.policy.base import Policy
from skyrl_gym.policy.transformers import TransformersPolicy
from skyrl_gym.trainer.recipe import LoraSection, Recipe
from skyrl_gym.trainer.served import ServedPolicy
from skyrl_gym.trainer.weights import write_weights

__all__ = ["check_policy", "keep_freed_memory", "load_model", "lora_config", "make_policy", "save_model"]


def load_model(recipe: Recipe) -> tuple[Any, Any]:
    """The model to train and its tokenizer; in fp32, for bf16 weights would lose updates this small to rounding.

    Raises:
        ConfigError: there is no such model.
        MissingDependency: it is to be held in 4 bits, and bitsandbytes is missing.
    """
    source = str(resolve_model(recipe.model))
    options: dict[str, Any] = {"dtype": torch.float32}
    if recipe.lora is not None and recipe.lora.load_in_4bit:
        options = {"quantization_config": _four_bits(), "dtype": torch.bfloat16}
    if recipe.train.attn_implementation is not None:
        options["attn_implementation"] = recipe.train.attn_implementation
    try:
        return AutoModelForCausalLM.from_pretrained(source, **options), AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise ConfigError(f"can't load the model {recipe.model}: {str(error).splitlines()[0]}") from error


def lora_config(section: LoraSection | None) -> Any:
    """PEFT's configuration, or None for full training."""
    if section is None:
        return None
    from peft import LoraConfig

    return LoraConfig(**section.model_dump(exclude={"load_in_4bit"}), task_type="CAUSAL_LM")


def make_policy(
    recipe: Recipe,
    model: Any,
    tokenizer: Any,
    loop: BackgroundLoop,
    *,
    writes: bool,
    meet: Callable[[], None] = lambda: None,
) -> TransformersPolicy | ServedPolicy:
    """The sampler: a server, or a copy of the model in half precision, which decodes faster.

    Raises:
        ConfigError: the server's folder is missing, or is the model that is trained.
    """
    if recipe.rollout.server is not None:
        folder = Path(recipe.rollout.server_folder or "")
        if not (folder / "config.json").is_file() or folder.resolve() == Path(recipe.model).resolve():
            raise ConfigError(
                f"rollout.server_folder is the model folder that the server was started on, a copy of the model for "
                f"the trainer to write to; got {recipe.rollout.server_folder!r}"
            )
        renderer = Renderer(tokenizer, recipe.dialect)
        return ServedPolicy(recipe.rollout.server, folder, renderer, loop, writes=writes, meet=meet)
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
    copy = AutoModelForCausalLM.from_config(_plain_config(model), dtype=torch.bfloat16).to(device).eval()
    return TransformersPolicy(copy, tokenizer, dialect=recipe.dialect, name=recipe.model)


def save_model(model: Any, weights: Mapping[str, torch.Tensor], tokenizer: Any, target: Path) -> None:
    """A plain model folder that every loader reads, in bf16, adapters merged in."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    config = _plain_config(base)
    config.dtype, config.architectures = torch.bfloat16, [type(base).__name__]
    target.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(target)
    if base.generation_config is not None:
        base.generation_config.save_pretrained(target)
    tokenizer.save_pretrained(target)
    write_weights(weights, target)


def _plain_config(model: Any) -> Any:
    """The configuration without what says that the weights are held in few bits."""
    held = {name: value for name, value in model.config.to_dict().items() if name != "quantization_config"}
    return type(model.config).from_dict(held)


async def check_policy(policy: Policy, *, needs_logprobs: bool) -> None:
    """Asks for one token, so that a policy that can't be trained with is refused before anything is spent.

    Raises:
        ConfigError: it gives no token ids, or no logprobs where they are needed.
    """
    if policy.renderer is None:
        raise ConfigError(f"{policy.name} has no renderer: training needs the exact token ids of prompts and answers")
    ids = tuple(policy.renderer.tokenizer.encode("Hello", add_special_tokens=False))
    answer = await policy.complete(Prompt((), (), ids), Sampling(max_tokens=1, seed=0))
    if answer.token_ids is None:
        raise ConfigError(f"{policy.name} gives no token ids, and training needs those that were really sampled")
    if needs_logprobs and answer.logprobs is None:
        raise ConfigError(
            f"{policy.name} gives no logprobs, and train.importance_correction needs them: set it to none, or use a "
            "policy that gives them"
        )


def keep_freed_memory() -> None:
    """Tells glibc to keep what is freed: given back and taken again each layer, it costs half of a CPU's time."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or torch.cuda.is_available():
        return
    trim_threshold, top_pad, mmap_max = -1, -2, -4  # as in malloc.h
    mallopt(mmap_max, 0)
    mallopt(trim_threshold, -1)  # never
    mallopt(top_pad, 2**28)


def _four_bits() -> Any:
    try:
        import bitsandbytes  # noqa: F401
    except ImportError:
        raise MissingDependency.extra("bitsandbytes", "qlora") from None
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
