"""Multi-turn GRPO on TRL's trainer.

TRL keeps its configuration, losses, reference model, LoRA, logging, checkpoints and launchers. Replaced are
rollouts, advantages and the cutting into micro-batches: any number of sequences a trajectory, groups of any
size left after exclusions. TRL's own generate-and-score method is never called.

Touched of TRL's private side, all stable since 0.26: `_step`, `_metrics`, `_logs`, `_compute_loss`,
`_get_per_token_logps_and_entropies`.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import nullcontext
from typing import Any

import torch
from accelerate.utils import gather_object
from transformers import Trainer
from trl import GRPOTrainer

from skyrl_gym.errors import ConfigError, RunAborted
from skyrl_gym.rollout import RolloutRequest, Trajectory
from skyrl_gym.tasks import TaskSet
from skyrl_gym.trainer.advantages import advantages
from skyrl_gym.trainer.batching import collate, cut, plan
from skyrl_gym.trainer.config import MultiTurnGRPOConfig
from skyrl_gym.trainer.samples import Sample, samples_of
from skyrl_gym.trainer.source import RolloutSource

__all__ = ["MultiTurnGRPOTrainer"]

_log = logging.getLogger(__name__)
# These divide by all tokens of the generation batch themselves; the others by the rows of a chunk.
_TOKEN_NORMALISED = frozenset({"dapo", "cispo", "vespo"})


class MultiTurnGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's `GRPOTrainer`, fed with trajectories.

    Args:
        env_id: the environment of the requests.
        tasks: what to train on; one dataset row a task.
        source: makes the trajectories.
        args: the configuration.
        kwargs: of `GRPOTrainer` (model, processing_class, peft_config, callbacks ...).
    """

    args: MultiTurnGRPOConfig

    def __init__(
        self, *, env_id: str, tasks: TaskSet, source: RolloutSource, args: MultiTurnGRPOConfig, **kwargs: Any
    ) -> None:
        from datasets import Dataset

        if not len(tasks):
            raise ConfigError(f"the task set {tasks.name!r} is empty: there is nothing to train on")
        rows = Dataset.from_dict({"prompt": [task.id for task in tasks], "task": list(range(len(tasks)))})
        super().__init__(args=args, train_dataset=rows, reward_funcs=_unused_reward, **kwargs)
        self._env_id = env_id
        self._tasks = tasks
        self._source = source
        self._micro_steps: list[list[dict[str, Any]]] = []
        self._chunk: dict[str, Any] = {}
        self._empty_batches = 0

    # ---- the four places where TRL's trainer is overridden

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """One micro-step: as many forward and backward passes as its samples need."""
        model.train()
        position = self._step % self.args.steps_per_generation
        if position == 0:
            self._micro_steps = self._rollout_phase(inputs)
        self._step += 1
        total: torch.Tensor = torch.zeros((), device=self.accelerator.device)
        # No chunk means no signal: without gradients the optimizer leaves weights and momentum alone.
        chunks = self._micro_steps[position] if self._micro_steps else []
        synchronise = self.accelerator.sync_gradients
        for number, self._chunk in enumerate(chunks, 1):
            last = number == len(chunks)
            self.accelerator.gradient_state._set_sync_gradients(synchronise and last)
            with nullcontext() if last or self.is_deepspeed_enabled else self.accelerator.no_sync(model):
                loss: torch.Tensor = Trainer.training_step(self, model, inputs, num_items_in_batch)
                total = total + loss
        return total

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        return self._chunk

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        loss: torch.Tensor = super()._compute_loss(model, inputs)
        scale: float = inputs["loss_scale"]
        return loss * scale

    # ---- one rollout phase

    def _rollout_phase(self, inputs: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        """Fresh trajectories, cut into [micro-step][chunk] of tensors; empty when nothing can be learned."""
        version = int(self.state.global_step)
        self._source.sync(self.accelerator.unwrap_model(self.model), version)
        trajectories = self._source.collect(self._requests(inputs, version))
        everyone: list[tuple[str, float | None]] = gather_object(
            [(t.group, t.reward if t.valid else None) for t in trajectories]
        )
        all_advantages = advantages([r for _, r in everyone], [g for g, _ in everyone], self.args.advantage)
        start = self.accelerator.process_index * len(trajectories)
        mine = all_advantages[start : start + len(trajectories)]
        samples = [
            sample
            for index, (trajectory, advantage) in enumerate(zip(trajectories, mine, strict=True))
            if trajectory.valid and advantage is not None
            for sample in samples_of(trajectory, index, advantage)
        ]
        self._report(trajectories, samples, [reward for _, reward in everyone])
        self._watch_for_empty_batches(trajectories, [reward for _, reward in everyone])
        if not any(all_advantages):
            return []
        return self._tensors(samples, version)

    def _requests(self, inputs: list[dict[str, Any]], version: int) -> list[RolloutRequest]:
        size, first = self.args.num_generations, self.accelerator.process_index * len(inputs)
        return [
            RolloutRequest(
                self._env_id,
                task := self._tasks[row["task"]],
                f"{version}/{task.id}",
                # Unlike in any other step, so that the journal tells them apart.
                version * size + (first + position) % size,
            )
            for position, row in enumerate(inputs)
        ]

    def _tensors(self, samples: list[Sample], version: int) -> list[list[dict[str, Any]]]:
        counts = [len(samples), len({s.trajectory for s in samples}), sum(sum(s.mask) for s in samples)]
        if self.beta == 0.0 and not self._entropy_bonus_enabled:
            samples = [sample for sample in samples if sample.advantage]  # the rest has no gradient
            counts[0] = len(samples)
        totals = self.accelerator.gather(torch.tensor([counts], device=self.accelerator.device))
        micro_steps = self.args.steps_per_generation
        shape = plan(int(totals[:, 0].max()), micro_steps, self.args.per_device_train_batch_size)
        scale = 1.0
        if self.loss_type not in _TOKEN_NORMALISED:
            scale = shape.rows * micro_steps * self.accelerator.num_processes / max(1, int(totals[:, 1].sum()))
        if self.loss_type == "bnpo":  # local to a chunk by definition
            scale = 1.0 / shape.chunks
        pad_id = self.processing_class.pad_token_id
        cuts = cut(samples, micro_steps, shape, seed=self.args.seed + version)
        return [[self._chunk_of(rows, shape.rows, pad_id, totals[:, 2].sum(), scale) for rows in step] for step in cuts]

    def _chunk_of(
        self, rows: list[Sample], size: int, pad_id: int, tokens: torch.Tensor, scale: float
    ) -> dict[str, Any]:
        device = self.accelerator.device
        chunk: dict[str, Any] = {name: value.to(device) for name, value in collate(rows, size, pad_id).items()}
        chunk |= {"num_items_in_batch": tokens, "loss_scale": scale}
        if self.beta != 0.0:
            chunk["ref_per_token_logps"] = self._reference_logps(chunk)
        if self.args.importance_correction:
            self._correct(chunk)
        return chunk

    def _correct(self, chunk: dict[str, Any]) -> None:
        """Truncated importance sampling: advantages become (rows, length), weighted by the clipped ratio."""
        if "sampling_per_token_logps" not in chunk:
            raise ConfigError("importance_correction needs the policy's logprobs, and it gave none")
        with torch.no_grad():
            now = self._logps(self.model, chunk)
        mask = chunk["tool_mask"]
        difference = (now - chunk["sampling_per_token_logps"]) * mask
        ratio = difference.exp().clamp(max=self.args.importance_clip)
        chunk["advantages"] = chunk["advantages"][:, None] * ratio
        count = mask.sum().clamp(min=1)
        self._metrics["train"]["sampling/kl"].append(float(-difference.sum() / count))
        self._metrics["train"]["sampling/ratio_max"].append(float(difference.exp().max()))

    def _reference_logps(self, chunk: dict[str, Any]) -> torch.Tensor:
        """Under the reference model: its own, or this one with its adapter switched off."""
        with torch.no_grad():
            if self.ref_model is not None:
                return self._logps(self.ref_model, chunk)
            with self.accelerator.unwrap_model(self.model).disable_adapter():
                return self._logps(self.model, chunk)

    def _logps(self, model: Any, chunk: dict[str, Any]) -> torch.Tensor:
        ids = torch.cat([chunk["prompt_ids"], chunk["completion_ids"]], dim=1)
        mask = torch.cat([chunk["prompt_mask"], chunk["completion_mask"]], dim=1)
        length = chunk["completion_ids"].size(1)
        logps: torch.Tensor = self._get_per_token_logps_and_entropies(model, ids, mask, length)[0]
        return logps

    # ---- what is told about it

    def _report(self, trajectories: list[Trajectory], samples: list[Sample], rewards: list[float | None]) -> None:
        metrics = self._metrics["train"]
        judged = torch.tensor([reward for reward in rewards if reward is not None])
        metrics["reward"].append(float(judged.mean()) if len(judged) else float("nan"))
        metrics["reward_std"].append(float(judged.std()) if len(judged) > 1 else 0.0)
        metrics["excluded"].append(sum(reward is None for reward in rewards))
        metrics["sampled_tokens"].append(sum(sum(s.mask) for s in samples))
        metrics["trained_tokens"].append(sum(s.tokens for s in samples))
        metrics["turns"].append(sum(len(t.turns) for t in trajectories) / len(trajectories))
        metrics["samples_per_trajectory"].append(len(samples) / len(trajectories))
        for reason, count in Counter(t.stop_reason.value for t in trajectories).items():
            metrics[f"stop/{reason}"].append(count / len(trajectories))

    def _watch_for_empty_batches(self, trajectories: list[Trajectory], rewards: list[float | None]) -> None:
        if any(reward is not None for reward in rewards):
            self._empty_batches = 0
            return
        self._empty_batches += 1
        first = next((t.error for t in trajectories if t.error), None)
        _log.error("no trajectory of this batch is valid; the first error: %s", first)
        if self._empty_batches >= self.args.max_empty_batches:
            what = f"{first.type}: {first.message}" if first else "no error was recorded"
            raise RunAborted(f"{self._empty_batches} batches in a row had no valid trajectory; {what}")


def _unused_reward(completions: list[Any], **_: Any) -> list[float]:
    """TRL wants a reward function; rewards come from the environments."""
    return [0.0] * len(completions)
