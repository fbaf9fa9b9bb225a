"""Does it learn? Held-out rewards before and after training a small model, over seeds, and with parts switched off.

Each line is `recipes/quickstart.yaml` (SmolLM2-135M, a memory agent) with changes. What is told is the difference on
held-out tasks with its 95 % interval over seeds; ablations show what a part is worth. Hours on two CPU cores:

    python -m benchmarks.learning --seeds 3 --steps 30 --only full --only lora
"""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

import typer

from skyrl_gym.trainer.recipe import load_recipe

RECIPE = Path(__file__).parents[1] / "recipes" / "quickstart.yaml"
LORA = {"lora.r": 16, "train.learning_rate": 2e-4}
VARIANTS: dict[str, dict[str, Any]] = {
    "full": {"train.advantage": "leave_one_out"},
    "lora": {"train.advantage": "leave_one_out", **LORA},
    "no leave-one-out": {"train.advantage": "mean"},
    "masked failures": {"train.advantage": "leave_one_out", "train.mask_endings": ["max_turns", "length"]},
    "credit by turn": {"train.advantage": "leave_one_out", "train.turn_discount": 0.9},
    "a step ahead": {
        "train.advantage": "leave_one_out",
        "rollout.staleness": 1,
        "train.importance_correction": "token_truncate",
    },
}
# Of Student's t, two-sided 95 %, by degrees of freedom.
T95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}


def interval(values: list[float]) -> str:
    """The mean and its 95 % interval."""
    if len(values) < 2:
        return f"{fmean(values):+.3f}"
    half = T95.get(len(values) - 1, 1.96) * stdev(values) / math.sqrt(len(values))
    return f"{fmean(values):+.3f} [{fmean(values) - half:+.3f}, {fmean(values) + half:+.3f}]"


def run(
    steps: int = 30,
    seeds: int = 3,
    tasks: int = 48,
    only: Annotated[list[str] | None, typer.Option()] = None,
    out: Path = Path("runs/learning"),
) -> None:
    """Trains the variants and prints a line each; a run that was stopped goes on."""
    from skyrl_gym.trainer.run import train

    print(f"{'variant':<18} {'before':>7} {'after':>7}  difference over {seeds} seeds")
    for name in only or VARIANTS:
        before, after = [], []
        for seed in range(seeds):
            changes = {"train.max_steps": steps, "eval.tasks": tasks, "seed": seed, "train.save_steps": 5}
            result = train(
                load_recipe(RECIPE, changes | VARIANTS[name]), out / f"{name.replace(' ', '-')}-{seed}", resume=True
            )
            assert result.before is not None and result.after is not None
            before.append(result.before.reward.value or 0.0)
            after.append(result.after.reward.value or 0.0)
        gains = [b - a for a, b in zip(before, after, strict=True)]
        print(f"{name:<18} {fmean(before):>7.3f} {fmean(after):>7.3f}  {interval(gains)}", flush=True)


if __name__ == "__main__":
    typer.run(run)
