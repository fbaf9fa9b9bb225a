"""A tiny model that learns, from nothing, to write letters: training in seconds, for tests and ablations.

Episodes have several turns of four tokens each. The reward is the share of letters in what was written, at the end or
turn by turn; a share of the episodes can break through no fault of the model.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from skyrl_gym import Message, TaskSet, TextEnv, ToolResult, finish, tool, user
from skyrl_gym.background import BackgroundLoop
from skyrl_gym.chat.testing import tiny_tokenizer
from skyrl_gym.errors import EnvError
from skyrl_gym.policy import Completion, Prompt, Sampling
from skyrl_gym.policy.transformers import TransformersPolicy
from skyrl_gym.rollout import FailurePolicy, RolloutLimits, RolloutRequest, Runner
from skyrl_gym.trainer.async_ import AsyncSource
from skyrl_gym.trainer.config import MultiTurnGRPOConfig
from skyrl_gym.trainer.grpo import MultiTurnGRPOTrainer
from skyrl_gym.trainer.source import SyncSource
from skyrl_gym.trainer.stream import Ingredient, TaskStream
from skyrl_gym.trainer.testing import tiny_model

GROUPS, SIZE, HELD_OUT = 2, 16, 128
ANSWER = 4  # tokens


class Letters(TextEnv):
    """Write letters.

    Args:
        turns: answers of an episode.
        sign: -1 turns the reward round.
        by_turn: the reward is given turn by turn, not at the end.
        broken: one in so many episodes breaks, by what was written; 0 for none.
        told: a broken episode is told as what it is; otherwise it is graded 0, as if the model had failed.
    """

    def __init__(
        self,
        *,
        turns: int = 2,
        sign: float = 1.0,
        by_turn: bool = False,
        broken: int = 0,
        told: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.turns, self.sign, self.by_turn, self.broken, self.told = turns, sign, by_turn, broken, told

    def load_tasks(self, split: str) -> TaskSet:
        return TaskSet.from_rows([{"id": f"t{i}"} for i in range(2)])

    def setup(self, task: Any) -> str:
        self.said: list[str] = []
        return "Write."

    @tool
    def nothing(self) -> str:
        """Does nothing."""
        return "ok"

    def respond(self, message: Message) -> ToolResult:
        self.said.append(message.text)
        reward = self.sign * letters(message.text) / self.turns if self.by_turn else 0.0
        return finish(reward=reward) if len(self.said) == self.turns else ToolResult("More.", reward=reward)

    def grade(self) -> float:
        text = "".join(self.said)
        if self.broken and zlib.crc32(text.encode()) % self.broken == 0:
            if self.told:
                raise EnvError("broken")
            return 0.0
        return 0.0 if self.by_turn else self.sign * letters(text)


def letters(text: str) -> float:
    """The share of letters."""
    return sum(character.isalpha() for character in text) / max(1, len(text))


class Brief(TransformersPolicy):
    """Four tokens are an answer: a model from scratch never ends one by itself."""

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        return replace(await super().complete(prompt, sampling), finish_reason="stop")


@dataclass(frozen=True)
class Setup:
    """What is trained: settings of the environment and the trainer's, steps, how far rollouts may be behind."""

    env: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    steps: int = 16
    staleness: int = 0
    learning_rate: float = 2e-2


@dataclass(frozen=True)
class Learned:
    """Mean rewards: of each step, and of fresh episodes that never break, before and after."""

    curve: list[float]
    before: float
    after: float


def learn(setup: Setup, seed: int = 0) -> Learned:
    """Trains from scratch; all that is random hangs on the seed."""
    loop = BackgroundLoop("miniature")
    policy = Brief(tiny_model(seed).eval(), tiny_tokenizer())
    runner = _runner(policy, seed, setup.env)
    stream = TaskStream([Ingredient("letters", Letters().tasks)], GROUPS, seed)
    source = (
        AsyncSource(stream, SIZE, GROUPS, setup.staleness, runner, policy, loop)
        if setup.staleness
        else SyncSource(stream, SIZE, runner, policy, loop)
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = MultiTurnGRPOTrainer(
            source=source, args=MultiTurnGRPOConfig(**_settings(setup, Path(folder), seed)), model=tiny_model(seed),
            processing_class=tiny_tokenizer(),
        )  # fmt: skip
        return _trained(trainer, policy, loop, setup, source.close)


def learn_by_trl(setup: Setup, seed: int = 0) -> Learned:
    """The same by TRL's own trainer, which for want of tool calls plays episodes of one turn."""
    loop = BackgroundLoop("miniature")
    policy = Brief(tiny_model(seed).eval(), tiny_tokenizer())
    prompt = policy.renderer.tokenizer.decode(policy.renderer.prompt_ids((user("Write."),), Letters().tool_specs))
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=tiny_model(seed), processing_class=tiny_tokenizer(),
            args=GRPOConfig(**_settings(setup, Path(folder), seed) | {"max_completion_length": ANSWER}),
            train_dataset=Dataset.from_dict({"prompt": [prompt] * GROUPS}),
            reward_funcs=lambda completions, **_: [setup.env.get("sign", 1.0) * letters(text) for text in completions],
        )  # fmt: skip
        return _trained(trainer, policy, loop, setup)


def _trained(
    trainer: Any, policy: Brief, loop: BackgroundLoop, setup: Setup, stop: Callable[[], None] = lambda: None
) -> Learned:
    """Trains, and lets the policy play before and after; `stop` ends what is under way in between."""
    before = loop.run(_held_out(policy, setup))
    trainer.train()
    stop()
    policy.load_weights(trainer.model.state_dict(), setup.steps)
    after = loop.run(_held_out(policy, setup))
    loop.run(policy.aclose())
    loop.close()
    return Learned([line["reward"] for line in trainer.state.log_history if "reward" in line], before, after)


def _settings(setup: Setup, folder: Path, seed: int) -> dict[str, Any]:
    """Those of the trainer, by TRL's names."""
    return {
        "output_dir": str(folder), "per_device_train_batch_size": GROUPS * SIZE, "num_generations": SIZE,
        "max_steps": setup.steps, "learning_rate": setup.learning_rate, "lr_scheduler_type": "constant", "bf16": False,
        "use_cpu": True, "report_to": "none", "save_strategy": "no", "gradient_checkpointing": False,
        "disable_tqdm": True, "logging_steps": 1, "max_completion_length": 16, "seed": seed, **setup.train,
    }  # fmt: skip


def _runner(policy: Brief, seed: int, settings: dict[str, Any]) -> Runner:
    return Runner(
        policy,
        Sampling(max_tokens=ANSWER, seed=seed),
        limits=RolloutLimits(live=32, setup=32, retries=0),
        failures=FailurePolicy(abort_share=1.0),
        make=lambda env_id, **_: Letters(**{"max_invalid": 9, "max_repeats": 9} | settings),
    )


async def _held_out(policy: Brief, setup: Setup) -> float:
    runner = _runner(policy, 10**6, setup.env | {"broken": 0})
    tasks = Letters().tasks
    requests = [RolloutRequest("letters", tasks[i % 2], str(i), i) for i in range(HELD_OUT)]
    return fmean([trajectory.reward or 0.0 async for trajectory in runner.run(requests)])
