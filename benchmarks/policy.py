"""Decoding with `TransformersPolicy` against `model.generate`: the same model, prompts and lengths.

Then conversations of several turns, with what has been read kept from turn to turn and without.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import torch

from skyrl_gym.messages import user
from skyrl_gym.policy import Prompt, Sampling
from skyrl_gym.policy.transformers import CACHE_TOKENS, TransformersPolicy

NEW = 32
TOGETHER, TURNS, RESULT = 8, 10, 60  # conversations, their turns, tokens of a tool's result


def theirs(model: Any, prompts: list[tuple[int, ...]]) -> float:
    ids = torch.tensor(prompts)
    started = time.perf_counter()
    with torch.no_grad():
        model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0,
            min_new_tokens=NEW, max_new_tokens=NEW, pad_token_id=0,
        )  # fmt: skip
    return time.perf_counter() - started


async def ours(policy: TransformersPolicy, prompts: list[tuple[int, ...]]) -> tuple[float, int]:
    started = time.perf_counter()
    sampling = Sampling(max_tokens=NEW)
    found = await asyncio.gather(*(policy.complete(Prompt((), (), ids), sampling) for ids in prompts))
    return time.perf_counter() - started, sum(len(c.token_ids or ()) for c in found)


async def converse(policy: TransformersPolicy, prompt: tuple[int, ...], seed: int) -> int:
    """A conversation; the tokens of all that was asked, prompts and completions."""
    tokens = 0
    for turn in range(TURNS):
        found = await policy.complete(Prompt((), (), prompt), Sampling(max_tokens=NEW, seed=seed + turn))
        prompt = (*prompt, *(found.token_ids or ()), *(100 + turn + seed + i for i in range(RESULT)))
        tokens += len(prompt) - RESULT
    return tokens


async def conversations(model: Any, tokenizer: Any, prompt: tuple[int, ...], cache_tokens: int) -> tuple[float, int]:
    policy = TransformersPolicy(model, tokenizer, cache_tokens=cache_tokens)
    started = time.perf_counter()
    tokens = sum(await asyncio.gather(*(converse(policy, prompt, 100 * i) for i in range(TOGETHER))))
    took = time.perf_counter() - started
    await policy.aclose()
    return took, tokens


async def run() -> None:
    policy = TransformersPolicy.load("smollm2-135m")
    text = policy.renderer.prompt_ids((user("Tell me about rivers. " * 30),))[:200]
    print(f"{'batch':>6} {'prompts':>9} {'ours tok/s':>11} {'generate tok/s':>15} {'ratio':>6}")
    for batch in (1, 8, 32):
        for kind in ("different", "equal"):
            prompts = [(*text[:-1], 100 + (i if kind == "different" else 0)) for i in range(batch)]
            took, tokens = await ours(policy, prompts)
            reference = theirs(policy.model, prompts)
            rates = tokens / took, batch * NEW / reference
            print(f"{batch:>6} {kind:>9} {rates[0]:>11.0f} {rates[1]:>15.0f} {rates[0] / rates[1]:>6.2f}")
    await policy.aclose()
    whole, tokens = await conversations(policy.model, policy.renderer.tokenizer, text, 0)
    kept, _ = await conversations(policy.model, policy.renderer.tokenizer, text, CACHE_TOKENS)
    print(f"\n{TOGETHER} conversations of {TURNS} turns, {tokens} tokens asked: read whole {whole:.1f} s, ", end="")
    print(f"kept from turn to turn {kept:.1f} s, {whole / kept:.2f} times as fast")


def main() -> None:
    asyncio.run(run())


if __name__ == "__main__":
    main()
