"""Does it learn? Held-out rewards before and after training, over seeds; and what single parts are worth.

SmolLM2-135M learns to keep a memory (`recipes/quickstart.yaml`) and to use two tools (`recipes/boxes`), all of its
weights and with adapters. Ablations are on a model from scratch (`benchmarks.miniature`), with and without the part.
A line of JSON is kept of each run that has ended; what is there is not run again, so it can be done in pieces:

    python -m benchmarks.learning --only ablations --seeds 8
    python -m benchmarks.learning --only 'memory, full' --seed 0
    python -m benchmarks.learning --show
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

from skyrl_gym import register_file
from skyrl_gym.evaluate.estimates import mean_of_tasks
from skyrl_gym.trainer.recipe import load_recipe

RECIPES = Path(__file__).parents[1] / "recipes"
MEMORY, BOXES = RECIPES / "quickstart.yaml", RECIPES / "boxes" / "recipe.yaml"
LORA = {"lora.r": 16, "train.learning_rate": 2e-4}


@dataclass(frozen=True)
class Result:
    """One run: mean rewards on held-out tasks before and after, and those of each step."""

    line: str
    seed: int
    before: float
    after: float
    curve: list[float]
    seconds: float


@dataclass(frozen=True)
class Pair:
    """An ablation: settings of the miniature without a part and with it; both have `common`.

    `against_trl`: the one without is trained by TRL's own trainer.
    """

    without: dict[str, Any]
    having: dict[str, Any]
    common: dict[str, Any] = field(default_factory=dict)
    against_trl: bool = False


WITHOUT = " (without)"
HALFWAY = 8  # steps of an ablation: later all of them are near the top
OURS = {"advantage": "leave_one_out", "loss_type": "dr_grpo"}
STALE = {"importance_correction": "token_truncate"}
SMALL_MODEL: dict[str, tuple[Path, dict[str, Any]]] = {
    "memory, full": (MEMORY, {}),
    "memory, lora": (MEMORY, LORA),
    "tools, full": (BOXES, {}),
    "tools, lora": (BOXES, LORA),
}
ABLATIONS: dict[str, Pair] = {
    "this trainer, against TRL's, 1 turn": Pair(
        {"train": {"loss_type": "dapo"}},
        {"train": {"loss_type": "dapo", "advantage": "group"}},
        {"env": {"turns": 1}},
        against_trl=True,
    ),
    "leave-one-out, against the mean": Pair({"train": OURS | {"advantage": "mean"}}, {"train": OURS}),
    "leave-one-out, against the deviation": Pair({"train": OURS | {"advantage": "group"}}, {"train": OURS}),
    "failures left out, a third broken": Pair(
        {"env": {"broken": 3, "told": False}}, {"env": {"broken": 3}}, {"train": OURS}
    ),
    "credit by turn, 4 turns": Pair(
        {"train": OURS}, {"train": OURS | {"turn_discount": 0.0}}, {"env": {"turns": 4, "by_turn": True}}
    ),
    "correction, 2 steps behind": Pair({"train": OURS}, {"train": OURS | STALE}, {"staleness": 2}),
}


def interval(values: list[float]) -> str:
    """The mean and its 95 % interval over seeds."""
    found = mean_of_tasks(values)
    bounds = "" if found.low is None else f" [{found.low:+.3f}, {found.high:+.3f}]"
    return f"{found.value:+.3f}{bounds}"


def small_model(line: str, seed: int, steps: int, tasks: int, out: Path) -> Result:
    """SmolLM2 by a recipe; a run that was cut short goes on."""
    from skyrl_gym.trainer.run import train

    register_file(BOXES.parent / "registry.yaml")
    path, changes = SMALL_MODEL[line]
    settings = {"train.advantage": "leave_one_out", "train.max_steps": steps, "train.save_steps": 5}
    recipe = load_recipe(path, settings | {"eval.tasks": tasks, "seed": seed} | changes)
    started = time.perf_counter()
    folder = out / f"{line.replace(', ', '-')}-{seed}"
    done = train(recipe, folder, resume=True)
    assert done.before is not None and done.after is not None
    steps_taken = [json.loads(step) for step in (folder / "metrics.jsonl").read_text().splitlines()]
    rewards = [done.before.reward.value or 0.0, done.after.reward.value or 0.0]
    return Result(line, seed, *rewards, [step["reward"] for step in steps_taken], time.perf_counter() - started)


def ablation(line: str, seed: int) -> list[Result]:
    """Without the part and with it, from the same weights and seeds."""
    from benchmarks.miniature import Setup, learn, learn_by_trl

    name, results = line.removesuffix(WITHOUT), []
    pair = ABLATIONS[name]
    other = learn_by_trl if pair.against_trl else learn
    for label, settings, play in ((name + WITHOUT, pair.without, other), (name, pair.having, learn)):
        started = time.perf_counter()
        done = play(Setup(steps=HALFWAY, **pair.common | settings), seed)
        took = time.perf_counter() - started
        results.append(Result(label, seed, done.before, done.after, done.curve, took))
    return results


class Kept:
    """The results on disk, a line of JSON each."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[Result]:
        if not self._path.is_file():
            return []
        return [Result(**json.loads(line)) for line in self._path.read_text().splitlines()]

    def add(self, results: list[Result]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.writelines(json.dumps(asdict(result)) + "\n" for result in results)

    def has(self, line: str, seed: int) -> bool:
        return any((result.line, result.seed) == (line, seed) for result in self.read())


def show(results: list[Result]) -> None:
    """The tables of what is there."""
    by_line: dict[str, dict[int, Result]] = {}
    for result in results:
        by_line.setdefault(result.line, {})[result.seed] = result
    print(f"{'held-out reward':<40} {'seeds':>5} {'before':>7} {'after':>7}  difference [95 % over seeds]")
    for line in filter(by_line.__contains__, SMALL_MODEL):
        runs = list(by_line[line].values())
        gains = [run.after - run.before for run in runs]
        print(_row(line, runs, fmean(run.before for run in runs), fmean(run.after for run in runs), gains))
    print(f"{'a part, on the miniature':<40} {'seeds':>5} {'without':>7} {'with':>7}  difference [95 % over seeds]")
    for line in filter(by_line.__contains__, ABLATIONS):
        having, without = by_line[line], by_line[line + WITHOUT]
        runs, others = list(having.values()), [without[seed] for seed in having]
        gains = [a.after - b.after for a, b in zip(runs, others, strict=True)]
        print(_row(line, runs, fmean(run.after for run in others), fmean(run.after for run in runs), gains))


def _row(line: str, runs: list[Result], left: float, right: float, gains: list[float]) -> str:
    return f"{line:<40} {len(runs):>5} {left:>7.3f} {right:>7.3f}  {interval(gains)}"


def run(
    only: Annotated[list[str] | None, typer.Option(help="Lines, or all `ablations`; all of everything.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds from 0.")] = 3,
    seed: Annotated[list[int] | None, typer.Option(help="These, in place of `seeds`.")] = None,
    steps: int = 10,
    tasks: int = 48,
    out: Path = Path("runs/learning"),
    show_only: Annotated[bool, typer.Option("--show", help="Print the tables of what is there.")] = False,
) -> None:
    """Runs what is missing and prints the tables; a run that was stopped goes on."""
    kept = Kept(out / "results.jsonl")
    everything = [*SMALL_MODEL, *ABLATIONS]
    lines = [line for name in only or everything for line in (ABLATIONS if name == "ablations" else [name])]
    if unknown := [line for line in lines if line not in everything]:
        raise typer.BadParameter(f"{unknown[0]!r}: known are ablations, {'; '.join(everything)}")
    for line in [] if show_only else lines:
        for number in seed or range(seeds):
            if kept.has(line, number):
                continue
            new = ablation(line, number) if line in ABLATIONS else [small_model(line, number, steps, tasks, out)]
            kept.add(new)
            print(f"{line}, seed {number}: done", flush=True)
    show(kept.read())


if __name__ == "__main__":
    typer.run(run)
