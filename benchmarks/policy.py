"""Decoding with `TransformersPolicy` against `model.generate`: the same model, prompts and lengths."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import torch

from skyrl_gym.messages import user
from skyrl_gym.policy import Prompt, Sampling
from skyrl_gym.policy.transformers import TransformersPolicy

NEW = 32


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


def main() -> None:
    asyncio.run(run())


if __name__ == "__main__":
    main()
