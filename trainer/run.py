"""A training run from a recipe: evaluate, train, evaluate again, save, report."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback, set_seed

from skyrl_gym.background import BackgroundLoop
from skyrl_gym.errors import ConfigError
from skyrl_gym.evaluate import Summary, evaluate
from skyrl_gym.evaluate.report import write_report
from skyrl_gym.evaluate.runs import JOURNAL, provenance, write_json
from skyrl_gym.policy import Sampling, resolve_model
from skyrl_gym.policy.transformers import TransformersPolicy
from skyrl_gym.progress import OnProgress, Progress
from skyrl_gym.registration import make_env
from skyrl_gym.rollout import Deadlines, Journal, RolloutLimits, Runner
from skyrl_gym.tasks import TaskSet
from skyrl_gym.trainer.config import MultiTurnGRPOConfig
from skyrl_gym.trainer.grpo import MultiTurnGRPOTrainer
from skyrl_gym.trainer.recipe import Recipe
from skyrl_gym.trainer.source import RunnerSource

__all__ = ["TrainResult", "train"]


@dataclass(frozen=True)
class TrainResult:
    """Where the run is and what it did to held-out tasks."""

    run_dir: Path
    before: Summary
    after: Summary


def train(recipe: Recipe, out: str | Path, on_progress: OnProgress = lambda progress: None) -> TrainResult:
    """Runs a recipe into the folder `out`; the trained model is in `out/model`, the report in `out/report.html`.

    Raises:
        ConfigError: the folder is in use, or the recipe names what isn't there.
        RunAborted: an environment has a bug, or no trajectory was valid.
    """
    folder = Path(out)
    if (folder / "run.json").exists():
        raise ConfigError(f"{folder} holds a run already; give another name")
    tasks = _tasks(recipe, "train", recipe.train_tasks)
    held_out = _tasks(recipe, recipe.eval.split, recipe.eval.tasks)
    set_seed(recipe.seed)
    _keep_freed_memory()
    on_progress(Progress("load", 0, 1, message=f"loading {recipe.model}"))
    model, tokenizer = _load(recipe)
    policy = _sampling_copy(recipe, model, tokenizer)
    write_json(
        folder / "run.json",
        {"kind": "train", "config": recipe.model_dump(), "provenance": provenance()},
    )
    loop = BackgroundLoop("rollouts")
    try:
        with Journal(folder / JOURNAL) as journal:
            source = RunnerSource(_runner(recipe, policy, journal), policy, loop)
            trainer = _trainer(recipe, folder, model, tokenizer, tasks, source, on_progress)
            before = loop.run(_evaluate(recipe, folder, policy, held_out, "before", on_progress))
            trainer.train()
            source.sync(trainer.accelerator.unwrap_model(trainer.model), trainer.state.global_step)
            after = loop.run(_evaluate(recipe, folder, policy, held_out, "after", on_progress))
        on_progress(Progress("save", 0, 1, message=f"saving to {folder / 'model'}"))
        _save(trainer.accelerator.unwrap_model(trainer.model), tokenizer, folder / "model")
        write_report(folder)
        return TrainResult(folder, before, after)
    finally:
        loop.run(policy.aclose())
        loop.close()


def _keep_freed_memory() -> None:
    """Tells glibc to keep what is freed: given back and taken again each layer, it costs half of a CPU's time."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or torch.cuda.is_available():
        return
    trim_threshold, top_pad, mmap_max = -1, -2, -4  # as in malloc.h
    mallopt(mmap_max, 0)
    mallopt(trim_threshold, -1)  # never
    mallopt(top_pad, 2**28)


def _tasks(recipe: Recipe, split: str, count: int | None) -> TaskSet:
    env = make_env(recipe.env.id, **{**recipe.env.kwargs, "split": split})
    tasks = env.tasks
    env.close()
    return tasks if count is None else tasks.take(count)


def _load(recipe: Recipe) -> tuple[Any, Any]:
    """The model to train, in fp32: bf16 weights would lose updates this small to rounding."""
    source = str(resolve_model(recipe.model))
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise ConfigError(f"can't load the model {recipe.model}: {str(error).splitlines()[0]}") from error
    return model, tokenizer


def _sampling_copy(recipe: Recipe, model: Any, tokenizer: Any) -> TransformersPolicy:
    """A copy of the model for sampling, in half precision: it decodes faster, and the weights follow each step."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    copy = AutoModelForCausalLM.from_config(model.config, dtype=torch.bfloat16).to(device).eval()
    policy = TransformersPolicy(copy, tokenizer, dialect=recipe.dialect, name=recipe.model)
    policy.load_weights(model.state_dict(), 0)
    return policy


def _runner(recipe: Recipe, policy: TransformersPolicy, journal: Journal) -> Runner:
    rollout = recipe.rollout
    return Runner(
        policy,
        Sampling(temperature=rollout.temperature, max_tokens=rollout.max_tokens, seed=recipe.seed),
        {**recipe.env.kwargs, "dialect": recipe.dialect},
        RolloutLimits(live=rollout.live, max_context=rollout.max_context),
        Deadlines(episode_s=rollout.episode_s),
        journal,
    )


def _trainer(
    recipe: Recipe,
    folder: Path,
    model: Any,
    tokenizer: Any,
    tasks: TaskSet,
    source: RunnerSource,
    on_progress: OnProgress,
) -> MultiTurnGRPOTrainer:
    trainer = MultiTurnGRPOTrainer(
        env_id=recipe.env.id,
        tasks=tasks,
        source=source,
        args=_config(recipe, folder),
        model=model,
        processing_class=tokenizer,
        peft_config=None if recipe.lora is None else _lora(recipe),
        callbacks=[_Reporter(folder / "metrics.jsonl", on_progress)],
    )
    trainer.remove_callback(PrinterCallback)  # prints each step as a dict, through any display
    return trainer


def _config(recipe: Recipe, folder: Path) -> MultiTurnGRPOConfig:
    settings = recipe.train.model_dump(exclude={"prompts_per_step"})
    world = int(os.environ.get("WORLD_SIZE", "1"))
    trajectories = recipe.train.prompts_per_step * recipe.train.num_generations
    per_pass = recipe.train.per_device_train_batch_size * world
    if trajectories % per_pass:
        raise ConfigError(
            f"train.prompts_per_step x train.num_generations = {trajectories} must be a multiple of "
            f"train.per_device_train_batch_size x processes = {per_pass}"
        )
    return MultiTurnGRPOConfig(
        **settings,
        output_dir=str(folder / "checkpoints"),
        gradient_accumulation_steps=trajectories // per_pass,
        steps_per_generation=trajectories // per_pass,
        temperature=recipe.rollout.temperature,
        max_completion_length=recipe.rollout.max_context or recipe.rollout.max_tokens,
        seed=recipe.seed,
        use_cpu=not torch.cuda.is_available(),
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def _lora(recipe: Recipe) -> Any:
    from peft import LoraConfig

    assert recipe.lora is not None
    return LoraConfig(**recipe.lora.model_dump(), task_type="CAUSAL_LM")


def _evaluate(
    recipe: Recipe, folder: Path, policy: TransformersPolicy, tasks: TaskSet, when: str, on_progress: OnProgress
) -> Coroutine[Any, Any, Summary]:
    return evaluate(
        recipe.env.id,
        policy,
        tasks=tasks,
        samples=recipe.eval.samples,
        out_dir=folder / "eval" / when,
        env_kwargs={**recipe.env.kwargs, "split": recipe.eval.split, "dialect": recipe.dialect},
        sampling=Sampling(temperature=recipe.eval.temperature, max_tokens=recipe.rollout.max_tokens, seed=recipe.seed),
        limits=RolloutLimits(live=recipe.rollout.live, max_context=recipe.rollout.max_context),
        deadlines=Deadlines(episode_s=recipe.rollout.episode_s),
        on_progress=on_progress,
        stage=f"evaluate {when}",
    )


def _save(model: Any, tokenizer: Any, target: Path) -> None:
    """A plain model folder that every loader reads, adapters merged in."""
    plain = model.merge_and_unload() if hasattr(model, "merge_and_unload") else model
    plain.to(torch.bfloat16).save_pretrained(target)
    tokenizer.save_pretrained(target)


class _Reporter(TrainerCallback):  # type: ignore[misc]
    """Writes metrics.jsonl, a line a step, and tells how far training is."""

    def __init__(self, path: Path, on_progress: OnProgress) -> None:
        self._path = path
        self._on_progress = on_progress

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._on_progress(Progress("train", 0, state.max_steps))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not logs or "reward" not in logs:
            return
        numbers = {name: value for name, value in logs.items() if isinstance(value, int | float) and value == value}
        with self._path.open("a") as file:
            file.write(json.dumps({"step": state.global_step, **numbers}) + "\n")
        detail: dict[str, float] = {
            name: numbers[name] for name in ("reward_std", "loss", "turns", "excluded") if name in numbers
        }
        self._on_progress(Progress("train", state.global_step, state.max_steps, numbers.get("reward"), detail=detail))
