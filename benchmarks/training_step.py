"""A training step against TRL's own `environment_factory`: the same tiny model, tokenizer, task and sizes.

The model is first taught by heart to call the tool once and then to stop, so that both sides play the same two
turns; what is measured is rollouts, bookkeeping, forward and backward, in CPU seconds on one thread.
"""

from __future__ import annotations

import copy
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen2_5_chat_template

from skyrl_gym import Message, Task, TaskSet, TextEnv, finish, tool, user
from skyrl_gym.background import BackgroundLoop
from skyrl_gym.chat import Renderer
from skyrl_gym.chat.testing import tiny_tokenizer
from skyrl_gym.messages import ToolCall, tool_result
from skyrl_gym.policy import Sampling
from skyrl_gym.policy.transformers import TransformersPolicy
from skyrl_gym.rollout import RolloutLimits, Runner
from skyrl_gym.trainer.config import MultiTurnGRPOConfig
from skyrl_gym.trainer.grpo import MultiTurnGRPOTrainer
from skyrl_gym.trainer.source import SyncSource
from skyrl_gym.trainer.stream import Ingredient, TaskStream

STEPS, BATCH, GROUP, NEW = 8, 32, 8, 96
CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


class Look(TextEnv):
    """One call of a tool, then a word."""

    default_max_turns = 4

    def load_tasks(self, split: str) -> TaskSet:
        return TaskSet.from_rows([{"id": f"t{i}"} for i in range(64)])

    async def setup(self, task: Task) -> str:
        self.turns = 0
        return "Look."

    @tool
    async def look(self) -> str:
        """Looks."""
        return "nothing"

    async def respond(self, message: Message) -> Any:
        return finish()

    async def grade(self) -> float:
        return float(len(self.conversation) % 3)


class TheirLook:
    """The same for TRL."""

    def reset(self, **_: Any) -> str:
        return ""

    def look(self) -> str:
        """Looks."""
        return "nothing"


def tokenizer() -> Any:
    found = tiny_tokenizer()
    found.chat_template = qwen2_5_chat_template
    return found


def taught() -> Any:
    """A model that calls `look` once and then says done, whichever of the two prompts it gets."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=400, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=1_024, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model, renderer = LlamaForCausalLM(config), Renderer(tokenizer())
    theirs = renderer.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Look."}], tools=[TheirLook().look], add_generation_prompt=True, tokenize=True,
        return_dict=False,
    )  # fmt: skip
    prompts = [list(renderer.prompt_ids((user("Look."),), Look().tool_specs)), list(theirs)]
    encode = renderer.tokenizer.encode
    answer = renderer.extend((tool_result(ToolCall("look", {}, "c"), "nothing"),), ended=True)
    tail = [*encode(CALL, add_special_tokens=False), 2, *answer, *encode("done", add_special_tokens=False), 2]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(150):
        for prompt in prompts:
            ids = torch.tensor([prompt + tail])
            labels = torch.tensor([[-100] * len(prompt) + tail])
            model(input_ids=ids, labels=labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


def settings(folder: str) -> dict[str, Any]:
    return {
        "output_dir": folder, "per_device_train_batch_size": BATCH, "num_generations": GROUP, "max_steps": STEPS,
        "learning_rate": 1e-6, "bf16": False, "use_cpu": True, "report_to": "none", "save_strategy": "no",
        "gradient_checkpointing": False, "disable_tqdm": True, "logging_steps": 1, "temperature": 1.0,
        "max_completion_length": 3 * NEW, "gradient_accumulation_steps": 1,
    }  # fmt: skip


def ours(model: Any, folder: str) -> tuple[float, float]:
    """CPU seconds, and turns an episode."""
    loop = BackgroundLoop("benchmark")
    policy = TransformersPolicy(copy.deepcopy(model).eval(), tokenizer())
    runner = Runner(
        policy, Sampling(max_tokens=NEW), limits=RolloutLimits(live=BATCH, setup=BATCH), make=lambda i, **_: Look()
    )
    stream = TaskStream([Ingredient("look", Look().tasks)], BATCH // GROUP)
    trainer = MultiTurnGRPOTrainer(
        source=SyncSource(stream, GROUP, runner, policy, loop), model=model,
        processing_class=tokenizer(), args=MultiTurnGRPOConfig(**settings(folder)),
    )  # fmt: skip
    took = cpu(trainer)
    loop.run(policy.aclose())
    loop.close()
    return took, last(trainer, "turns")


def theirs(model: Any, folder: str) -> tuple[float, float]:
    """CPU seconds, and tool calls an episode."""
    trainer = GRPOTrainer(
        model=model, args=GRPOConfig(**settings(folder)), processing_class=tokenizer(),
        train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": "Look."}]] * 64}),
        environment_factory=TheirLook, reward_funcs=lambda completions, **_: [len(str(c)) % 3.0 for c in completions],
    )  # fmt: skip
    return cpu(trainer), last(trainer, "tools/call_frequency")


def cpu(trainer: Any) -> float:
    started = time.process_time()
    trainer.train()
    return (time.process_time() - started) / STEPS


def last(trainer: Any, name: str) -> float:
    return next((log[name] for log in reversed(trainer.state.log_history) if name in log), float("nan"))


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model = taught()
    with tempfile.TemporaryDirectory() as folder:
        a, turns = ours(copy.deepcopy(model), str(Path(folder) / "a"))
        b, calls = theirs(copy.deepcopy(model), str(Path(folder) / "b"))
    print(f"ours: {turns:.2f} turns an episode; TRL: {calls:.2f} tool calls an episode")
    print(f"CPU seconds a step: ours {a:.3f}, TRL {b:.3f}, ratio {a / b:.2f}")


if __name__ == "__main__":
    main()
