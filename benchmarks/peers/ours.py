"""This package: `Runner`, `TextEnv`, one tool. "tokens" as third argument: with a renderer, token in, token out."""

import asyncio
import sys
from contextlib import aclosing
from typing import Any

from work import ARGUMENTS, CALL, PROMPT, RESULT, SAYS, TURNS, measure

from skyrl_gym import Task, TextEnv, ToolCall, tool
from skyrl_gym.messages import assistant
from skyrl_gym.policy import Completion, Prompt, Sampling
from skyrl_gym.rollout import RolloutLimits, RolloutRequest, Runner

IN_TOKENS = "tokens" in sys.argv


class NoOp(TextEnv):
    """Does nothing."""

    async def setup(self, task: Task) -> str:
        return PROMPT

    @tool
    async def nothing(self, n: int) -> str:
        """Does nothing.

        Args:
            n: how often.
        """
        return RESULT

    async def grade(self) -> float:
        return 1.0


class Stand:
    """Answers at once."""

    name = "stand-in"
    renderer: Any = None

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        await asyncio.sleep(0)
        return Completion("", message=assistant(SAYS, ToolCall("nothing", dict(ARGUMENTS), "")))

    async def aclose(self) -> None:
        pass


class StandInTokens(Stand):
    """The same in token ids."""

    def __init__(self) -> None:
        from trl.chat_template_utils import qwen2_5_chat_template

        from skyrl_gym.chat import Renderer
        from skyrl_gym.chat.testing import tiny_tokenizer

        tokenizer = tiny_tokenizer()
        tokenizer.chat_template = qwen2_5_chat_template
        self.renderer = Renderer(tokenizer)
        self.reply = (*tokenizer.encode(f"{SAYS}\n{CALL}", add_special_tokens=False), tokenizer.eos_token_id)

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        await asyncio.sleep(0)
        return Completion("", token_ids=self.reply)


async def play(policy: Any, episodes: int, at_once: int) -> int:
    runner = Runner(
        policy, limits=RolloutLimits.bounded(at_once), make=lambda env_id, **_: NoOp(max_turns=TURNS, max_repeats=99)
    )
    requests = (RolloutRequest("noop", Task(f"t{i}", {"n": i}), f"t{i}") for i in range(episodes))
    turns = 0
    async with aclosing(runner.run(requests)) as found:
        async for trajectory in found:
            assert trajectory.reward == 1.0
            turns += len(trajectory.turns)
    return turns


policy = StandInTokens() if IN_TOKENS else Stand()
measure(lambda episodes, at_once: asyncio.run(play(policy, episodes, at_once)))
