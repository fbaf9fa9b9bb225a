"""A model from scratch learns from real rollouts: the loss points uphill, and downhill with rewards turned round."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from skyrl_gym import Message, TaskSet, TextEnv, finish, tool
from skyrl_gym.background import BackgroundLoop
from skyrl_gym.chat.testing import tiny_tokenizer
from skyrl_gym.policy import Completion, Prompt, Sampling
from skyrl_gym.policy.transformers import TransformersPolicy
from skyrl_gym.rollout import RolloutLimits, Runner
from skyrl_gym.trainer.stream import Ingredient, TaskStream

pytestmark = pytest.mark.filterwarnings("default::FutureWarning")
STEPS, GROUPS, SIZE = 16, 2, 16


class Letters(TextEnv):
    """Write letters: the reward is their share of what was written. It takes two turns."""

    def __init__(self, *, sign: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sign = sign

    def load_tasks(self, split: str) -> TaskSet:
        return TaskSet.from_rows([{"id": f"t{i}"} for i in range(2)])

    def setup(self, task: Any) -> str:
        self.said: list[str] = []
        return "Write."

    @tool
    def nothing(self) -> str:
        """Does nothing."""
        return "ok"

    def respond(self, message: Message) -> Any:
        self.said.append(message.text)
        return finish() if len(self.said) == 2 else "More."

    def grade(self) -> float:
        text = "".join(self.said)
        return self.sign * sum(character.isalpha() for character in text) / max(1, len(text))


class Brief(TransformersPolicy):
    """Four tokens are an answer: a model from scratch never ends one by itself."""

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        return replace(await super().complete(prompt, sampling), finish_reason="stop")


def rewards(folder: Path, tools: Any, sign: float, staleness: int, **settings: Any) -> list[float]:
    """The mean reward of each step."""
    from skyrl_gym.trainer.async_ import AsyncSource
    from skyrl_gym.trainer.config import MultiTurnGRPOConfig
    from skyrl_gym.trainer.grpo import MultiTurnGRPOTrainer
    from skyrl_gym.trainer.source import SyncSource

    tokenizer, loop = tiny_tokenizer(), BackgroundLoop("learning")
    policy = Brief(tools.tiny_model().eval(), tokenizer)
    runner = Runner(
        policy,
        Sampling(max_tokens=4, seed=0),
        limits=RolloutLimits(live=32, setup=32),
        make=lambda env_id, **_: Letters(sign=sign, max_invalid=9),
    )
    stream = TaskStream([Ingredient("letters", Letters().tasks)], GROUPS)
    source = (
        AsyncSource(stream, SIZE, GROUPS, staleness, runner, policy, loop)
        if staleness
        else SyncSource(stream, SIZE, runner, policy, loop)
    )
    config = MultiTurnGRPOConfig(
        output_dir=str(folder), per_device_train_batch_size=GROUPS * SIZE, num_generations=SIZE, max_steps=STEPS,
        learning_rate=2e-2, lr_scheduler_type="constant", bf16=False, use_cpu=True, report_to="none",
        save_strategy="no", gradient_checkpointing=False, disable_tqdm=True, logging_steps=1,
        max_completion_length=16, seed=0, **settings,
    )  # fmt: skip
    trainer = MultiTurnGRPOTrainer(source=source, args=config, model=tools.tiny_model(), processing_class=tokenizer)
    trainer.train()
    source.close()
    loop.run(policy.aclose())
    loop.close()
    return [line["reward"] for line in trainer.state.log_history if "reward" in line]


@pytest.mark.parametrize(
    ("staleness", "settings"),
    [
        (0, {"loss_type": "dapo", "advantage": "group"}),
        (0, {"loss_type": "dr_grpo", "advantage": "leave_one_out", "turn_discount": 1.0}),
        (1, {"loss_type": "dapo", "advantage": "leave_one_out", "importance_correction": "token_truncate"}),
    ],
    ids=["group", "by turn", "asynchronous"],
)
def test_the_reward_goes_up(tmp_path: Path, tools: Any, staleness: int, settings: Any) -> None:
    torch.manual_seed(0)
    found = rewards(tmp_path, tools, 1.0, staleness, **settings)
    assert len(found) == STEPS
    assert fmean(found[-4:]) > fmean(found[:3]) + 0.25, found


def test_turned_round_it_goes_the_other_way(tmp_path: Path, tools: Any) -> None:
    found = rewards(tmp_path, tools, -1.0, 0, loss_type="dapo", advantage="group")
    letters = [-value for value in found]
    assert fmean(letters[-4:]) < fmean(letters[:3]) - 0.25, letters
