"""A training model's weights as a plain model has them, whatever it is wrapped in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["plain_weights"]


@torch.no_grad()
def plain_weights(model: Any) -> Mapping[str, torch.Tensor]:
    """Whole tensors under the names of the plain model: adapters added in, shards put together.

    The model itself is not touched: merging adapters and taking them out again would round its weights a
    little more each time. Where it is sharded this is a collective operation, so every process calls it.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    found = {
        name.replace(".base_layer", "").replace(".modules_to_save.default", ""): _whole(value)
        for name, value in base.state_dict().items()
        if "lora_" not in name and ".original_module" not in name
    }
    for name, module in base.named_modules():
        if hasattr(module, "get_delta_weight"):
            held = _dequantised(module.get_base_layer())
            found[f"{name}.weight"] = held + sum(
                _whole(module.get_delta_weight(adapter)).to(held.dtype) for adapter in module.active_adapters
            )
    return found


def _dequantised(layer: Any) -> torch.Tensor:
    """A layer's weight as numbers, also where it is held in 4 or 8 bits (QLoRA)."""
    from peft.utils.integrations import dequantize_module_weight

    return _whole(dequantize_module_weight(layer))


def _whole(value: torch.Tensor) -> torch.Tensor:
    """A tensor that FSDP2 has sharded, in one piece."""
    whole: torch.Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return whole
