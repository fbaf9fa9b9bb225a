"""A training model's weights as a plain model has them, whatever it is wrapped in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

__all__ = ["keep_adapters_exact", "plain_weights", "write_weights"]

SHARD_BYTES = 4 * 2**30


class _Lazy(Mapping[str, torch.Tensor]):
    """Tensors made when they are asked for, so that only one is held whole at a time."""

    def __init__(self, makers: Mapping[str, Callable[[], torch.Tensor]]) -> None:
        self._makers = makers

    def __getitem__(self, name: str) -> torch.Tensor:
        with torch.no_grad():
            return self._makers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def plain_weights(model: Any) -> Mapping[str, torch.Tensor]:
    """Whole tensors under the names of the plain model: adapters added in, shards put together.

    Each is made when it is looked up. Where the model is sharded that is a collective operation: every process
    looks all of them up, in the same order. The model itself is not touched: merging adapters and taking them
    out again would round its weights a little more each time.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    own = {name for kind in (base.named_parameters, base.named_buffers) for name, _ in kind(remove_duplicate=False)}
    found: dict[str, Callable[[], torch.Tensor]] = {
        name.replace(".base_layer", "").replace(".modules_to_save.default", ""): partial(_whole, value)
        for name, value in base.state_dict().items()
        if name in own  # and no note on how one is quantised
        and "lora_" not in name
        and ".original_module" not in name
    }
    for name, module in base.named_modules():
        if hasattr(module, "get_delta_weight"):
            found[f"{name}.weight"] = partial(_adapted, module)
        elif f"{name}.weight" in found and hasattr(module.weight, "quant_state"):
            found[f"{name}.weight"] = partial(_dequantised, module)
    return _Lazy(found)


def keep_adapters_exact(model: Any) -> None:
    """Holds the adapters of a quantised model in fp32; TRL casts them to bf16, which rounds small updates away."""
    if getattr(model, "is_quantized", False):
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()


def write_weights(weights: Mapping[str, torch.Tensor], folder: Path) -> None:
    """Writes weights in bf16 as safetensors, one file or several with an index, in place of those that are there."""
    places: dict[str, str] = {}
    held: dict[str, torch.Tensor] = {}

    def flush() -> None:
        if held:
            name = f"model-{len(set(places.values())) + 1:05d}.safetensors"
            save_file(held, folder / name, metadata={"format": "pt"})
            places.update(dict.fromkeys(held, name))
            held.clear()

    for name in weights:
        held[name] = weights[name].detach().to("cpu", torch.bfloat16, copy=True).contiguous()
        if sum(tensor.nbytes for tensor in held.values()) > SHARD_BYTES:
            flush()
    flush()
    files, index, single = sorted(set(places.values())), folder / "model.safetensors.index.json", "model.safetensors"
    if len(files) == 1:
        (folder / files[0]).replace(folder / single)
        index.unlink(missing_ok=True)
        files = [single]
    else:
        index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    for stale in folder.glob("model*.safetensors"):
        if stale.name not in files:
            stale.unlink()


def _adapted(module: Any) -> torch.Tensor:
    held = _dequantised(module.get_base_layer())
    return held + sum(_whole(module.get_delta_weight(name)).to(held.dtype) for name in module.active_adapters)


def _dequantised(layer: Any) -> torch.Tensor:
    """A layer's weight as numbers, also where it is held in 4 or 8 bits (QLoRA)."""
    from peft.utils.integrations import dequantize_module_weight

    return _whole(dequantize_module_weight(layer))


def _whole(value: torch.Tensor) -> torch.Tensor:
    """A tensor that FSDP2 has sharded, in one piece."""
    whole: torch.Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return whole
