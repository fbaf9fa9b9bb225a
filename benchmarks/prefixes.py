"""Reading what sequences have in common once: seconds and tokens of a forward and backward pass, against row by row.

The trainer's own passes, on a model of 9 million parameters: groups that share a long prompt, and episodes whose
context is rewritten in every turn behind a beginning that stays.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from skyrl_gym.chat.testing import tiny_tokenizer
from skyrl_gym.rollout import Trajectory
from skyrl_gym.trainer.config import MultiTurnGRPOConfig
from skyrl_gym.trainer.grpo import MultiTurnGRPOTrainer
from skyrl_gym.trainer.samples import Sample

VOCABULARY, LAYERS, HIDDEN, ROWS = 400, 6, 384, 8


class Nothing:
    """A source of nothing: the benchmark hands samples in itself."""

    position = 0

    def sync(self, weights: Any, version: int) -> None: ...

    def draw(self, groups: int) -> list[Trajectory]:
        return []

    def close(self) -> None: ...


def model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=3 * HIDDEN, num_hidden_layers=LAYERS,
        num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=8_192, pad_token_id=0, bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def ids(count: int, *seed: Any) -> tuple[int, ...]:
    return tuple(random.Random(str(seed)).choices(range(3, VOCABULARY), k=count))


def sample(prompt: tuple[int, ...], completion: tuple[int, ...], index: int) -> Sample:
    every = len(completion)
    return Sample(prompt, completion, (1,) * every, None, (0,) * every, (0,) * every, (0.5,) * every, "t", index)


def groups(count: int, size: int, prompt: int, completion: int) -> list[Sample]:
    return [sample(ids(prompt, g), ids(completion, g, i), g * size + i) for g in range(count) for i in range(size)]


def forks(count: int, turns: int, fixed: int, rewritten: int, completion: int) -> list[Sample]:
    """Memory agents: rules and tools stay, the section and the memory are others in every turn."""
    return [
        sample(ids(fixed) + ids(rewritten, i, t), ids(completion, i, t, "c"), i)
        for i in range(count)
        for t in range(turns)
    ]


CASES = {
    "8 samples, prompt 2,000, completion 64": groups(1, 8, 2_000, 64),
    "4 groups of 8, prompt 300, completion 40": groups(4, 8, 300, 40),
    "8 memory agents, 4 turns, 250 of 350 fixed": forks(8, 4, 250, 100, 40),
    "8 samples, prompt 300, completion 300": groups(1, 8, 300, 300),
}


def passes(samples: list[Sample], share: bool, folder: Path) -> tuple[float, int]:
    """Seconds of all forward and backward passes of a step, the better of two, and the tokens that were read."""
    config = MultiTurnGRPOConfig(
        output_dir=str(folder), per_device_train_batch_size=ROWS, num_generations=8, max_steps=1, bf16=False,
        use_cpu=True, report_to="none", gradient_checkpointing=False, share_prefixes=share,
    )  # fmt: skip
    trainer = MultiTurnGRPOTrainer(source=Nothing(), args=config, model=model(), processing_class=tiny_tokenizer())
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1  # otherwise set by the training loop
    (chunks,) = trainer._chunks(samples)
    taken = []
    for _ in range(2):
        started = time.perf_counter()
        for trainer._chunk in chunks:
            trainer.compute_loss(trainer.model, trainer._chunk).backward()
        taken.append(time.perf_counter() - started)
    return min(taken), sum(map(_tokens, chunks))


def _tokens(chunk: dict[str, Any]) -> int:
    if "tree" in chunk:
        return int(chunk["tree"]["input_ids"].numel())
    return int(chunk["prompt_ids"].numel() + chunk["completion_ids"].numel())


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"{'':<44} {'tokens':>15} {'ratio':>6} {'seconds':>13} {'ratio':>6}")
    for name, samples in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            apart, read = passes(samples, False, Path(folder))
            shared, once = passes(samples, True, Path(folder))
        print(
            f"{name:<44} {read:>7} /{once:>6} {read / once:>6.2f} {apart:>6.2f} /{shared:>5.2f} {apart / shared:>6.2f}"
        )


if __name__ == "__main__":
    main()
