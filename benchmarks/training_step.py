"""A training step against TRL's own `environment_factory`: the same tiny model, tokenizer, task and sizes.

The model is first taught by heart to call the tool in every turn, so that both sides play the same number of turns;
what is measured is whole steps, rollouts included, with a tool that takes no time and one that takes 100 ms, in wall
seconds and in CPU seconds on one thread. Ours goes row by row, as TRL does, and once more as it comes: what sequences
have in common read once. As the model knows its part by heart, they have much more in common here than elsewhere.
"""

from __future__ import annotations

import copy
import inspect
import io
import os
import tempfile
import time
import warnings
from contextlib import redirect_stdout
from dataclasses import dataclass
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

STEPS, BATCH, GROUP, NEW = 3, 32, 8, 32
TAUGHT = 10  # turns
CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
# Turns and seconds that the tool takes.
CASES = ((3, 0.0), (3, 0.1), (10, 0.1))


class Look(TextEnv):
    """A tool that shows nothing, called again and again."""

    def __init__(self, *, tool_s: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tool_s = tool_s

    def load_tasks(self, split: str) -> TaskSet:
        return TaskSet.from_rows([{"id": f"t{i}"} for i in range(64)])

    async def setup(self, task: Task) -> str:
        self.number = int(task.id[1:])
        return "Look."

    @tool
    def look(self) -> str:
        """Looks."""
        time.sleep(self.tool_s)
        return "nothing"

    async def respond(self, message: Message) -> Any:
        return finish()

    async def grade(self) -> float:
        return float((self.number + id(self) // 64) % 3)


def their_environment(tool_s: float) -> type:
    class TheirLook:
        """The same for TRL."""

        def reset(self, **_: Any) -> str:
            return ""

        def look(self) -> str:
            """Looks."""
            time.sleep(tool_s)
            return "nothing"

    return TheirLook


def tokenizer() -> Any:
    found = tiny_tokenizer()
    found.chat_template = qwen2_5_chat_template
    return found


def taught() -> Any:
    """A model that calls `look` in every turn, whichever of the two prompts it gets."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=400, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=2_048, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model, renderer = LlamaForCausalLM(config), Renderer(tokenizer())
    theirs = renderer.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Look."}], tools=[their_environment(0.0)().look], add_generation_prompt=True,
        tokenize=True, return_dict=False,
    )  # fmt: skip
    prompts = [list(renderer.prompt_ids((user("Look."),), Look().tool_specs)), list(theirs)]
    encode = renderer.tokenizer.encode
    answer = renderer.extend((tool_result(ToolCall("look", {}, "c"), "nothing"),), ended=True)
    call = [*encode(CALL, add_special_tokens=False), 2]
    tail = [*call, *answer] * TAUGHT + call
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(90):
        for prompt in prompts:
            ids = torch.tensor([prompt + tail])
            labels = torch.tensor([[-100] * len(prompt) + tail])
            model(input_ids=ids, labels=labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


def settings(folder: str, turns: int) -> dict[str, Any]:
    return {
        "output_dir": folder, "per_device_train_batch_size": BATCH, "num_generations": GROUP, "max_steps": STEPS,
        "learning_rate": 1e-9, "bf16": False, "use_cpu": True, "report_to": "none", "save_strategy": "no",
        "gradient_checkpointing": False, "disable_tqdm": True, "logging_steps": 1, "temperature": 0.3,
        "max_completion_length": 3 * NEW * turns, "gradient_accumulation_steps": 1,
    }  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """Of a step, in seconds; how many tool calls an episode made."""

    wall: float
    cpu: float
    calls: float


def ours(model: Any, folder: str, turns: int, tool_s: float, *, share: bool) -> Cost:
    loop = BackgroundLoop("benchmark")
    policy = TransformersPolicy(copy.deepcopy(model).eval(), tokenizer())
    runner = Runner(
        policy,
        Sampling(max_tokens=NEW, temperature=0.3),
        limits=RolloutLimits(live=BATCH, setup=BATCH),
        make=lambda env_id, **_: Look(tool_s=tool_s, max_turns=turns, **unlimited()),
    )
    stream = TaskStream([Ingredient("look", Look().tasks)], BATCH // GROUP)
    trainer = MultiTurnGRPOTrainer(
        source=SyncSource(stream, GROUP, runner, policy, loop), model=model, processing_class=tokenizer(),
        args=MultiTurnGRPOConfig(**settings(folder, turns), share_prefixes=share),
    )  # fmt: skip
    cost = measured(trainer, "tools/calls")
    loop.run(policy.aclose())
    loop.close()
    return cost


def unlimited() -> dict[str, int]:
    """Settings against an end by repetition, where environments have one."""
    known = inspect.signature(TextEnv.__init__).parameters
    return {"max_repeats": 1_000} if "max_repeats" in known else {}


def theirs(model: Any, folder: str, turns: int, tool_s: float) -> Cost:
    trainer = GRPOTrainer(
        model=model, processing_class=tokenizer(),
        args=GRPOConfig(**settings(folder, turns), max_tool_calling_iterations=turns - 1),
        train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": "Look."}]] * 64}),
        environment_factory=their_environment(tool_s),
        reward_funcs=lambda completions, **_: [len(str(c)) % 3.0 for c in completions],
    )  # fmt: skip
    return measured(trainer, "tools/call_frequency")


def measured(trainer: Any, calls: str) -> Cost:
    cpu, wall = time.process_time(), time.perf_counter()
    trainer.train()
    took = (time.perf_counter() - wall) / STEPS
    return Cost(took, (time.process_time() - cpu) / STEPS, last(trainer, calls))


def last(trainer: Any, name: str) -> float:
    return next((log[name] for log in reversed(trainer.state.log_history) if name in log), float("nan"))


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model = taught()
    print(f"{BATCH} rollouts; ours / TRL")
    print(f"{'turns':>5} {'tool':>6} {'wall s':>15} {'ratio':>6} {'CPU s':>13} {'calls':>11}   shared: wall, CPU s")
    for turns, tool_s in CASES:
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
            a = ours(copy.deepcopy(model), str(Path(folder) / "a"), turns, tool_s, share=False)
            shared = ours(copy.deepcopy(model), str(Path(folder) / "c"), turns, tool_s, share=True)
            b = theirs(copy.deepcopy(model), str(Path(folder) / "b"), turns, tool_s)
        print(
            f"{turns:>5} {tool_s * 1e3:>3.0f} ms {a.wall:>7.2f} /{b.wall:>6.2f} {b.wall / a.wall:>6.2f} "
            f"{a.cpu:>6.2f} /{b.cpu:>5.2f} {a.calls:>5.2f} /{b.calls:>4.2f}   {shared.wall:.2f} {shared.cpu:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
