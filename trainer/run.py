"""A training run from a recipe: evaluate, train, evaluate again, save, report."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import torch
from accelerate import PartialState
from transformers import PrinterCallback, TrainerCallback, set_seed

from skyrl_gym.background import BackgroundLoop
from skyrl_gym.env import TextEnv
from skyrl_gym.errors import ConfigError
from skyrl_gym.evaluate import Summary, evaluate
from skyrl_gym.evaluate.report import write_report
from skyrl_gym.evaluate.runs import in_use, open_run, provenance, write_json
from skyrl_gym.evaluate.spec import EvalSpec, images_of, note_images, write_provenance
from skyrl_gym.policy import Sampling, in_dialect_of
from skyrl_gym.policy.base import Policy
from skyrl_gym.policy.serving import vllm_program
from skyrl_gym.policy.transformers import TransformersPolicy
from skyrl_gym.progress import OnProgress, Progress
from skyrl_gym.registration import make_env
from skyrl_gym.rollout import Deadlines, Journal, MetricsLog, OnMetrics, RolloutLimits, Runner
from skyrl_gym.sandbox.engine import image_digests
from skyrl_gym.tasks import TaskSet
from skyrl_gym.trainer.async_ import AsyncSource
from skyrl_gym.trainer.colocated import ColocatedPolicy, colocated
from skyrl_gym.trainer.config import MultiTurnGRPOConfig
from skyrl_gym.trainer.grpo import MultiTurnGRPOTrainer
from skyrl_gym.trainer.models import (
    check_policy,
    keep_freed_memory,
    load_model,
    lora_config,
    make_policy,
    save_model,
)
from skyrl_gym.trainer.recipe import EnvSection, Recipe
from skyrl_gym.trainer.resume import (
    Finished,
    Ledger,
    checkpoint_of,
    cut_metrics,
    journal_of,
    mark_whole,
    rollout_metrics_of,
)
from skyrl_gym.trainer.served import ServedPolicy
from skyrl_gym.trainer.source import RolloutSource, Share, SyncSource
from skyrl_gym.trainer.stream import Ingredient, TaskStream
from skyrl_gym.trainer.weights import plain_weights

__all__ = ["TrainResult", "train"]


@dataclass(frozen=True)
class TrainResult:
    """Where the run is and what it did to held-out tasks, for the first of its environments."""

    run_dir: Path
    before: Summary | None
    after: Summary | None


def train(
    recipe: Recipe, out: str | Path, on_progress: OnProgress = lambda progress: None, *, resume: bool = False
) -> TrainResult:
    """Runs a recipe into the folder `out`; the trained model is in `out/model`, the report in `out/report.html`.

    Under `accelerate launch` every process calls it; the first one evaluates and writes the files.

    Args:
        resume: go on with what the folder holds; without it, a folder that is in use is refused.

    Raises:
        ConfigError: the folder is in use or of another recipe, or the recipe names what isn't there.
        MissingDependency: the recipe wants vLLM beside the trainer, and it is not installed.
        RunAborted: an environment has a bug, or nothing could be trained on.
    """
    folder = Path(out)
    _refuse_other_runs(recipe, folder, resume)
    _refuse_spread_groups(recipe)
    if recipe.rollout.vllm_mode == "colocate":
        vllm_program()
    ingredients = [_ingredient(recipe, section) for section in recipe.environments]
    held_out = [_tasks(recipe, section, recipe.eval.split, recipe.eval.tasks) for section in recipe.environments]
    config = _config(recipe, folder)
    with ExitStack() as held:
        state = PartialState()
        if state.is_main_process:
            held.enter_context(in_use(folder))
        run = _Run(recipe, folder, config, on_progress if state.is_main_process else lambda progress: None, held)
        return run.all(ingredients, held_out)


class _Run:
    """The parts of one run, and its stages."""

    def __init__(
        self, recipe: Recipe, folder: Path, config: MultiTurnGRPOConfig, tell: OnProgress, held: ExitStack
    ) -> None:
        self.recipe, self.folder, self.config, self.tell = recipe, folder, config, tell
        self.state = PartialState()
        set_seed(recipe.seed)
        keep_freed_memory()
        tell(Progress("load", 0, 1, message=f"loading {recipe.model}"))
        self.model, self.tokenizer = load_model(recipe)
        self.loop = BackgroundLoop("rollouts")
        held.callback(self.loop.close)
        self.policy = self._sampler(held)
        held.callback(lambda: self.loop.run(self.policy.aclose()))
        held_by = self.policy.renderer.dialect.name
        tell(Progress("load", 1, 1, message=f"{recipe.model} writes tool calls as {held_by}"))
        self.loop.run(check_policy(self.policy, needs_logprobs=recipe.train.importance_correction != "none"))
        self.checkpoint = checkpoint_of(Path(config.output_dir)) if self.state.is_main_process else None
        self.state.wait_for_everyone()  # what a kill left of a later checkpoint is gone
        self.checkpoint = self.checkpoint or checkpoint_of(Path(config.output_dir))
        self.journal = held.enter_context(Journal(journal_of(folder, self.state.process_index)))
        self.metrics = held.enter_context(MetricsLog(rollout_metrics_of(folder, self.state.process_index)))

    def _sampler(self, held: ExitStack) -> TransformersPolicy | ServedPolicy:
        writes, meet = self.state.is_main_process, self.state.wait_for_everyone
        if self.recipe.rollout.vllm_mode != "colocate":
            return make_policy(self.recipe, self.model, self.tokenizer, self.loop, writes=writes, meet=meet)

        def say(text: str) -> None:
            self.tell(Progress("load", 0, 1, message=text))

        folder = self.folder.resolve() / "served"  # the server reads it by this name
        return held.enter_context(
            colocated(self.recipe, self.model, self.tokenizer, folder, self.loop, writes=writes, meet=meet, say=say)
        )

    def all(self, ingredients: list[Ingredient], held_out: list[TaskSet]) -> TrainResult:
        if self.state.is_main_process and not (self.folder / "run.json").exists():
            config = json.loads(self.recipe.model_dump_json())
            write_json(self.folder / "run.json", {"kind": "train", "config": config, "provenance": provenance()})
        source = self._source(ingredients)
        trainer = self._trainer(source)
        source.sync(plain_weights(self.model), 0)
        before = self._evaluate(held_out, "before")
        trainer.train(resume_from_checkpoint=None if self.checkpoint is None else str(self.checkpoint))
        source.close()
        trained = trainer.accelerator.unwrap_model(trainer.model)
        source.sync(plain_weights(trained), trainer.state.global_step)
        after = self._evaluate(held_out, "after")
        self.tell(Progress("save", 0, 1, message=f"saving to {self.folder / 'model'}"))
        weights = plain_weights(trained)
        if self.state.is_main_process:
            save_model(trained, weights, self.tokenizer, self.folder / "model")
            write_report(self.folder)
        else:
            for name in weights:  # putting shards together takes all processes
                _ = weights[name]
        return TrainResult(self.folder, before, after)

    def _source(self, ingredients: list[Ingredient]) -> RolloutSource:
        recipe = self.recipe
        stream = TaskStream(ingredients, recipe.train.prompts_per_step, recipe.seed)
        step = 0 if self.checkpoint is None else int(self.checkpoint.name.split("-")[1])
        position = self._ledger.position_before(step)
        stream.skip_to(position)
        finished = Finished.read(self.folder, position)
        self.state.wait_for_everyone()  # all have read before one writes
        if self.state.is_main_process:
            self._ledger.cut(step)
            cut_metrics(self.folder / "metrics.jsonl", step)
        share = Share(self.state.process_index, self.state.num_processes)
        runner, size = _runner(recipe, self.policy, self.journal, self.metrics), recipe.train.num_generations
        if not recipe.rollout.staleness:
            return SyncSource(stream, size, runner, self.policy, self.loop, share, finished)
        groups, staleness = recipe.train.prompts_per_step, recipe.rollout.staleness
        return AsyncSource(stream, size, groups, staleness, runner, self.policy, self.loop, share, finished)

    def _trainer(self, source: RolloutSource) -> MultiTurnGRPOTrainer:
        trainer = MultiTurnGRPOTrainer(
            source=source,
            args=self.config,
            model=self.model,
            processing_class=self.tokenizer,
            peft_config=lora_config(self.recipe.lora),
            callbacks=[_Reporter(self.folder / "metrics.jsonl", self.tell), _Marker()],
            on_batch=self._has_batch,
        )
        trainer.remove_callback(PrinterCallback)  # prints each step as a dict, through any display
        return trainer

    @property
    def _ledger(self) -> Ledger:
        return Ledger(self.folder / "steps.jsonl")

    def _has_batch(self, step: int, groups: int) -> None:
        if self.state.is_main_process:
            self._ledger.note(step, groups)
        if isinstance(self.policy, ColocatedPolicy):
            self.policy.rest()

    def _evaluate(self, held_out: list[TaskSet], when: str) -> Summary | None:
        """All environments, on the first process; the others wait."""
        found = None
        if self.state.is_main_process and self.recipe.eval.tasks:
            for number, (section, tasks) in enumerate(zip(self.recipe.environments, held_out, strict=True)):
                name = when if number == 0 else f"{when}-{section.id.replace('/', '-')}"
                model = self.recipe.model if when == "before" else str(self.folder / "model")
                spec, folder = _eval_spec(self.recipe, section, model), self.folder / "eval" / name
                images = images_of(tasks)
                summary = self.loop.run(
                    evaluate(
                        spec.env,
                        self.policy,
                        tasks=tasks,
                        samples=spec.samples,
                        out_dir=folder,
                        env_kwargs=spec.kwargs,
                        sampling=spec.sampling,
                        limits=_limits(self.recipe),
                        deadlines=Deadlines(episode_s=self.recipe.rollout.episode_s),
                        begun=partial(write_provenance, folder, spec, images=images),
                        on_progress=self.tell,
                        stage=f"evaluate {name}",
                    )
                )
                if images:
                    note_images(folder, image_digests(images))
                found = summary if number == 0 else found
        self.state.wait_for_everyone()
        return found


def _refuse_other_runs(recipe: Recipe, folder: Path, resume: bool) -> None:
    if not (folder / "run.json").exists():
        return
    if not resume:
        raise ConfigError(f"{folder} holds a run already; give another name, or --resume to go on with it")
    asked, held = json.loads(recipe.model_dump_json()), open_run(folder).config
    if differing := [key for key in asked | dict(held) if asked.get(key) != held.get(key)]:
        raise ConfigError(f"{folder} holds a run of another recipe (it differs in {', '.join(differing)})")


def _refuse_spread_groups(recipe: Recipe) -> None:
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if recipe.closes_groups_spread_over(processes):
        raise ConfigError(
            f"rollout.close_groups_at counts the trajectories of a group, and {processes} processes that roll out by "
            "turns with training share each group: set rollout.staleness to 1 or more, which shares out whole groups"
        )


def _eval_spec(recipe: Recipe, section: EnvSection, model: str) -> EvalSpec:
    """An evaluation of the recipe's, so that `skyrl eval --from` can make it again."""
    return EvalSpec(
        env=section.id,
        model=model,
        kwargs={**section.kwargs, "split": recipe.eval.split, "dialect": recipe.dialect},
        tasks=recipe.eval.tasks,
        samples=recipe.eval.samples,
        seeds=(recipe.seed,),
        temperature=recipe.eval.temperature,
        max_tokens=recipe.rollout.max_tokens,
        max_context=recipe.rollout.max_context,
    )


def _ingredient(recipe: Recipe, section: EnvSection) -> Ingredient:
    return Ingredient(section.id, _tasks(recipe, section, "train", recipe.train_tasks), section.weight)


def _tasks(recipe: Recipe, section: EnvSection, split: str, count: int | None) -> TaskSet:
    env = make_env(section.id, **{**section.kwargs, "split": split})
    tasks = env.tasks
    env.close()
    return tasks if count is None else tasks.take(count)


def _runner(recipe: Recipe, policy: Policy, journal: Journal, on_metrics: OnMetrics) -> Runner:
    return Runner(
        policy,
        Sampling(temperature=recipe.rollout.temperature, max_tokens=recipe.rollout.max_tokens, seed=recipe.seed),
        {},
        replace(_limits(recipe), close_groups_at=recipe.rollout.close_groups_at),
        Deadlines(episode_s=recipe.rollout.episode_s),
        journal,
        on_metrics=on_metrics,
        make=_maker(recipe, policy),
    )


def _maker(recipe: Recipe, policy: Policy) -> Callable[..., TextEnv]:
    """Makes each environment of a mixture with its own settings."""
    settings = {
        section.id: in_dialect_of(policy, {**section.kwargs, "dialect": recipe.dialect})
        for section in recipe.environments
    }
    return lambda env_id, **_: make_env(env_id, **settings[env_id])


def _limits(recipe: Recipe) -> RolloutLimits:
    return RolloutLimits(live=recipe.rollout.live, max_context=recipe.rollout.max_context)


def _config(recipe: Recipe, folder: Path) -> MultiTurnGRPOConfig:
    ours = {"prompts_per_step", "save_steps", "attn_implementation"}
    world = int(os.environ.get("WORLD_SIZE", "1"))
    trajectories = recipe.train.prompts_per_step * recipe.train.num_generations
    per_pass = recipe.train.per_device_train_batch_size * world
    if trajectories % per_pass:
        raise ConfigError(
            f"train.prompts_per_step x train.num_generations = {trajectories} must be a multiple of "
            f"train.per_device_train_batch_size x processes = {per_pass}"
        )
    return MultiTurnGRPOConfig(
        **recipe.train.model_dump(exclude=ours),
        output_dir=str(folder / "checkpoints"),
        run_name=folder.name,
        gradient_accumulation_steps=trajectories // per_pass,
        steps_per_generation=trajectories // per_pass,
        temperature=recipe.rollout.temperature,
        max_completion_length=recipe.rollout.max_context or recipe.rollout.max_tokens,
        seed=recipe.seed,
        use_cpu=not torch.cuda.is_available(),
        logging_steps=1,
        save_strategy="no" if recipe.train.save_steps is None else "steps",
        save_steps=recipe.train.save_steps or 500,
        save_total_limit=2,  # so that one is complete while another is written
        report_to=list(recipe.log.report_to) or "none",
        log_completions=recipe.log.trajectories > 0,
        log_trajectories=recipe.log.trajectories,
        num_completions_to_print=0,
        disable_tqdm=True,
        ddp_timeout=86_400,  # processes wait for each other while one evaluates
    )


class _Marker(TrainerCallback):  # type: ignore[misc]
    """Marks checkpoints that were written to the end."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            mark_whole(Path(args.output_dir) / f"checkpoint-{state.global_step}")


class _Reporter(TrainerCallback):  # type: ignore[misc]
    """Writes metrics.jsonl, a line a step, and tells how far training is."""

    def __init__(self, path: Path, on_progress: OnProgress) -> None:
        self._path = path
        self._on_progress = on_progress

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._on_progress(Progress("train", state.global_step, state.max_steps))

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
