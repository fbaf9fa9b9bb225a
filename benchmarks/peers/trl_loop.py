"""TRL: `GRPOTrainer` with an `environment_factory`; a batch goes through `_generate`, its generation-and-tool loop.

A stand-in gives the token ids that a model would have sampled; nothing else is replaced. The loop is synchronous and in
lock-step, so the batch is what is under way at once. It counts in tokens: templates, parsing and masks are in it.
"""

import os
import tempfile
import warnings

os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false"}

import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen2_5_chat_template
from work import CALL, PROMPT, RESULT, SAYS, TURNS, measure

from skyrl_gym.chat.testing import tiny_tokenizer


class NoOp:
    def reset(self, **_):
        return None

    def nothing(self, n: int) -> str:
        """Does nothing.

        Args:
            n: how often.
        """
        return RESULT


class Trainer(GRPOTrainer):
    """With a stand-in for the model."""

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        return [list(self.reply) for _ in prompt_ids], None


def trainer(folder):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = qwen2_5_chat_template
    config = LlamaConfig(
        vocab_size=400, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, max_position_embeddings=100_000, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    made = Trainer(
        model=LlamaForCausalLM(config), processing_class=tokenizer, reward_funcs=lambda completions, **_: [1.0],
        args=GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=False, report_to="none", max_completion_length=90_000,
            max_tool_calling_iterations=TURNS, per_device_train_batch_size=8, num_generations=8,
        ),
        train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": PROMPT}]] * 8}),
        environment_factory=NoOp,
    )  # fmt: skip
    made.reply = [*tokenizer.encode(f"{SAYS}\n{CALL}", add_special_tokens=False), tokenizer.eos_token_id]
    return made


def play(made, episodes, at_once):
    turns = 0
    for first in range(0, episodes, at_once):
        size = min(at_once, episodes - first)
        envs = [NoOp() for _ in range(size)]
        made._batch_environments, made.environments = [None] * size, envs
        made._sync_tool_dicts, made._async_tool_dicts = [{"nothing": env.nothing} for env in envs], [{}] * size
        _, _, masks, completions, *_ = made._generate([[{"role": "user", "content": PROMPT}] for _ in range(size)])
        assert len(masks) == size
        turns += sum(message["role"] == "tool" for completion in completions for message in completion)
    return turns


warnings.simplefilter("ignore")
torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as folder:
    made = trainer(folder)
    measure(lambda episodes, at_once: play(made, episodes, at_once))
