"""A model small enough to train in a test."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a two-layer model with random weights: it stands for any model, and learns nothing."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from skyrl_gym.chat.testing import tiny_tokenizer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = tiny_tokenizer("chatml_tools")
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=2_048,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    folder = tmp_path_factory.mktemp("model") / "tiny"
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
