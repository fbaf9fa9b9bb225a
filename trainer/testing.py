"""A model for tests and benchmarks that takes no time, with the vocabulary of `skyrl_gym.chat.testing`."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

__all__ = ["tiny_model"]


def tiny_model(seed: int = 0) -> Any:
    """A Llama of two layers with random weights, for up to 256 tokens."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=400, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config)
