"""One training step against TRL's own `environment_factory`: the same tiny model, task and sizes, CPU seconds.

The task is a no-op tool called in one or more turns by a random model, so that what is measured is rollout
bookkeeping, tensors, forward and backward; not how well anything learns.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer

from skyrl_gym import Task, TaskSet, TextEnv, tool
from skyrl_gym.background import BackgroundLoop
from skyrl_gym.chat.testing import tiny_tokenizer
from skyrl_gym.policy import Sampling
from skyrl_gym.policy.transformers import TransformersPolicy
from skyrl_gym.rollout import RolloutLimits, Runner
from skyrl_gym.trainer.config import MultiTurnGRPOConfig
from skyrl_gym.trainer.grpo import MultiTurnGRPOTrainer
from skyrl_gym.trainer.source import RunnerSource

STEPS, BATCH, GROUP, NEW = 8, 32, 8, 24


def model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=400, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=1_024, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def settings(folder: str) -> dict[str, Any]:
    return {
        "output_dir": folder, "per_device_train_batch_size": BATCH, "num_generations": GROUP, "max_steps": STEPS,
        "learning_rate": 1e-4, "bf16": False, "use_cpu": True, "report_to": "none", "save_strategy": "no",
        "gradient_checkpointing": False, "disable_tqdm": True, "logging_steps": 100, "max_completion_length": NEW,
    }  # fmt: skip


class Look(TextEnv):
    """One tool that says nothing of use."""

    default_max_turns = 2

    def load_tasks(self, split: str) -> TaskSet:
        return TaskSet.from_rows([{"id": f"t{i}"} for i in range(64)])

    async def setup(self, task: Task) -> str:
        return "Look."

    @tool
    async def look(self) -> str:
        """Looks."""
        return "nothing"

    async def grade(self) -> float:
        # Any reward that differs within a group.
        return float(len(self.conversation[-1].text) + hash(self.conversation) % 7)


class TheirLook:
    """The same for TRL."""

    def reset(self, **_: Any) -> str:
        return ""

    def look(self) -> str:
        """Looks.

        Returns:
            What there is.
        """
        return "nothing"


def ours(folder: str) -> float:
    import skyrl_gym.registration  # noqa: F401

    trained, tokenizer, loop = model(), tiny_tokenizer(), BackgroundLoop("benchmark")
    policy = TransformersPolicy(model().eval(), tokenizer)
    runner = Runner(policy, Sampling(max_tokens=NEW), limits=RolloutLimits(live=BATCH), make=lambda i, **_: Look())
    trainer = MultiTurnGRPOTrainer(
        env_id="look", tasks=Look().tasks, source=RunnerSource(runner, policy, loop), model=trained,
        processing_class=tokenizer, args=MultiTurnGRPOConfig(**settings(folder), gradient_accumulation_steps=1),
    )  # fmt: skip
    started = time.process_time()
    trainer.train()
    took = time.process_time() - started
    loop.run(policy.aclose())
    loop.close()
    return took


def theirs(folder: str) -> float:
    from datasets import Dataset

    tokenizer = tiny_tokenizer("chatml_tools")
    tokenizer.response_template = None
    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": "Look."}]] * 64})
    trainer = GRPOTrainer(
        model=model(), args=GRPOConfig(**settings(folder)), train_dataset=rows, processing_class=tokenizer,
        reward_funcs=lambda completions, **_: [float(len(str(c)) % 7) for c in completions],
    )  # fmt: skip
    started = time.process_time()
    trainer.train()
    return time.process_time() - started


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        a, b = ours(str(Path(folder) / "a")) / STEPS, theirs(str(Path(folder) / "b")) / STEPS
    print(f"CPU seconds a step: ours {a:.3f}, TRL {b:.3f}, ratio {a / b:.2f}")


if __name__ == "__main__":
    main()
