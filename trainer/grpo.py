"""Multi-turn GRPO on TRL's trainer.

TRL keeps its configuration, losses, reference model, LoRA, logging, checkpoints and launchers. Replaced are
rollouts, advantages and the cutting into micro-batches: any number of sequences a trajectory, groups of any
size left after exclusions. TRL's own generate-and-score method is never called.

Touched of TRL's private side, all stable since 0.26: `_step`, `_metrics`, `_logs`, `_compute_loss`,
`_get_per_token_logps_and_entropies`; and `_send_telemetry`, which is switched off.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import zip_longest
from typing import Any

import torch
from accelerate.utils import gather_object
from transformers import Trainer
from trl import GRPOTrainer

from skyrl_gym.errors import ConfigError, RunAborted
from skyrl_gym.messages import format_transcript
from skyrl_gym.rollout import ErrorInfo, Trajectory
from skyrl_gym.trainer.batching import collate, deal, filled, pack
from skyrl_gym.trainer.config import MultiTurnGRPOConfig
from skyrl_gym.trainer.corrections import Mismatch, importance_weights, mismatch
from skyrl_gym.trainer.metrics import batch_metrics
from skyrl_gym.trainer.outcomes import Outcome, advantages_of, groups_with_signal
from skyrl_gym.trainer.prefixes import WORTH_SHARING, Tree, can_share, pack_shared
from skyrl_gym.trainer.samples import Sample, samples_of
from skyrl_gym.trainer.source import RolloutSource
from skyrl_gym.trainer.weights import keep_adapters_exact, plain_weights

__all__ = ["MultiTurnGRPOTrainer"]

_log = logging.getLogger(__name__)
# These divide by all tokens of the generation batch themselves; the others by the rows of a chunk.
_TOKEN_NORMALISED = frozenset({"dapo", "cispo", "vespo"})


class MultiTurnGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """TRL's `GRPOTrainer`, fed with trajectories.

    Args:
        source: makes the trajectories; it knows the environments and tasks.
        args: the configuration; `max_steps` bounds the run, for a source has no end.
        on_batch: told, when a step has its batch, the step from 0 and how many groups have been drawn.
        kwargs: of `GRPOTrainer` (model, processing_class, peft_config, callbacks ...).

    Raises:
        ConfigError: `max_steps` is missing.
    """

    args: MultiTurnGRPOConfig

    def __init__(
        self,
        *,
        source: RolloutSource,
        args: MultiTurnGRPOConfig,
        on_batch: Callable[[int, int], None] = lambda step, groups: None,
        **kwargs: Any,
    ) -> None:
        from datasets import Dataset

        if args.max_steps <= 0:
            raise ConfigError(f"max_steps is 1 or more: tasks come without end; got {args.max_steps}")
        # TRL counts steps by the rows of a data set. Tasks come from the source, so these rows are empty.
        rows = Dataset.from_dict({"prompt": [""] * (args.groups_per_step * args.max_steps)})
        super().__init__(args=args, train_dataset=rows, reward_funcs=_unused_reward, **kwargs)
        keep_adapters_exact(self.model)
        self._source = source
        self._on_batch = on_batch
        self._shares = args.share_prefixes and can_share(self.model)
        self._micro_steps: list[list[dict[str, Any]]] = []
        self._chunk: dict[str, Any] = {}
        self._mismatch = Mismatch(0.0, 0.0, 1.0)
        self._empty_batches = 0

    # ---- where TRL's trainer is overridden

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """One micro-step: as many forward and backward passes as its samples need."""
        model.train()
        position = self._step % self.args.steps_per_generation
        if position == 0:
            self._micro_steps = self._rollout_phase()
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
        if position == self.args.steps_per_generation - 1:
            self._report_mismatch()
        return total

    def _send_telemetry(self) -> None:
        """TRL's own: nothing is sent, whatever is set."""

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        return self._chunk

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        loss: torch.Tensor = super()._compute_loss(model, inputs)
        scale: float = inputs["loss_scale"]
        return loss * scale

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """TRL's; the loss reads the advantages after it, so weights for them are set here, at no second pass."""
        if "tree" in self._chunk:
            found = self._read_tree(model, dict(self._chunk["tree"]))
        else:
            found = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        if torch.is_grad_enabled() and "sampling_per_token_logps" in self._chunk:
            self._weigh(self._chunk, found[0].detach())
        return found

    def _read_tree(self, model: Any, tree: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        """Log-probabilities and entropies of completions (rows, length), their common beginnings read once."""
        places = tree.pop("places")
        with self.accelerator.autocast():
            read = model(**tree, fused_lm_head=True)
        return read.log_probs[0][places], None if read.entropy is None else read.entropy[0][places], None

    # ---- one rollout phase

    def _rollout_phase(self) -> list[list[dict[str, Any]]]:
        """Fresh trajectories, cut into [micro-step][chunk] of tensors; empty when nothing can be learned."""
        version = int(self.state.global_step)
        self._source.sync(plain_weights(self.accelerator.unwrap_model(self.model)), version)
        started = time.perf_counter()
        mine, by_process = self._collect()
        self._on_batch(version, self._source.position)
        outcomes = [outcome for some in by_process for outcome in some]
        if not outcomes:
            raise RunAborted("the source gave no trajectory at all for a batch")
        found = advantages_of(outcomes, self.args.advantage, drop_flat=self.args.drops_flat_groups)
        start = sum(len(some) for some in by_process[: self.accelerator.process_index])
        samples = [
            sample
            for index, trajectory in enumerate(mine)
            if (values := found[start + index]) is not None
            for sample in samples_of(trajectory, index, values if len(values) > 1 else values[0])
        ]
        self._record(batch_metrics(outcomes, version) | {"seconds/rollout": time.perf_counter() - started})
        self._show(mine, found[start : start + len(mine)])
        self._watch_for_empty_batches(mine, outcomes)
        if not any(any(values) for values in found if values):
            return []
        return self._chunks(samples)

    def _collect(self) -> tuple[list[Trajectory], list[list[Outcome]]]:
        """This process's trajectories, and the outcomes of each process's."""
        mine: list[Trajectory] = []
        by_process: list[list[Outcome]] = [[] for _ in range(self.accelerator.num_processes)]
        missing = self.args.groups_per_step
        for _ in range(1 + self.args.refill_rounds):
            fresh = self._source.draw(missing)
            mine += fresh
            told = [Outcome.of(t, self.args.turn_discount, self.args.masked_endings) for t in fresh]
            for held, new in zip(by_process, gather_object([told]), strict=True):
                held += new
            signal = groups_with_signal(outcome for some in by_process for outcome in some)
            missing = self.args.groups_per_step - len(signal)
            if missing <= 0:
                break
        return mine, by_process

    def _chunks(self, samples: list[Sample]) -> list[list[dict[str, Any]]]:
        counts = [len({s.trajectory for s in samples}), sum(len(s.advantages) for s in samples)]
        if self.beta == 0.0 and not self._entropy_bonus_enabled:
            samples = [sample for sample in samples if any(sample.advantages)]  # the rest has no gradient
        self._refuse_missing_logprobs(samples)
        packed, saved = self._packed(samples)
        read = sum(sample.tokens for sample in samples)
        told = gather_object([(*counts, [len(rows) for rows in packed], read, saved * read)])
        all_trajectories, all_tokens, all_rows, all_read, all_shared = zip(*told, strict=True)
        self._record({"shared_tokens": sum(all_shared) / max(1, sum(all_read))})
        trajectories, tokens = max(1, sum(all_trajectories)), sum(all_tokens)
        # Every process does the same passes, of as many rows: collective operations are made for nothing else.
        shape = [max(rows) for rows in zip_longest(*all_rows, fillvalue=0)]
        packed += [[]] * (len(shape) - len(packed))
        scale = self._loss_scale(len(shape), trajectories)
        chunks = [
            self._tensors(some, rows, tokens, scale(rows), saved > 0) for some, rows in zip(packed, shape, strict=True)
        ]
        return deal(chunks, self.args.steps_per_generation)

    def _packed(self, samples: list[Sample]) -> tuple[list[list[Sample]], float]:
        """The samples of each pass, and the share of tokens that are common and read once; 0 for passes by length."""
        bounds = self.args.per_device_train_batch_size, self.args.max_forward_tokens
        if self._shares and not self.aux_loss_enabled:
            packed, saved = pack_shared(samples, *bounds)
            if saved >= WORTH_SHARING:
                return packed, saved
        return pack(samples, *bounds), 0.0

    def _loss_scale(self, chunks: int, trajectories: int) -> Callable[[int], float]:
        """What the loss of a chunk of so many rows is multiplied by, so that the cut into chunks doesn't matter."""
        micro_steps = self.args.steps_per_generation
        if self.loss_type in _TOKEN_NORMALISED:
            return lambda rows: 1.0
        if self.loss_type == "bnpo":  # local to a chunk by definition
            return lambda rows: micro_steps / chunks
        return lambda rows: rows * micro_steps * self.accelerator.num_processes / trajectories

    def _tensors(self, samples: list[Sample], rows: int, tokens: int, scale: float, shares: bool) -> dict[str, Any]:
        device, pad_id = self.accelerator.device, self.processing_class.pad_token_id
        samples = filled(samples, rows, pad_id)
        batch = collate(samples, pad_id)
        chunk: dict[str, Any] = {name: value.to(device) for name, value in batch.items()}
        chunk |= {"num_items_in_batch": torch.tensor(tokens, device=device), "loss_scale": scale}
        if shares:
            chunk["tree"] = Tree.of(samples).tensors(device)
        if self.beta != 0.0:
            self._chunk = chunk  # what is read
            chunk["ref_per_token_logps"] = self._reference_logps(chunk)
        return chunk

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

    # ---- the sampler's distribution against the trained one

    def _refuse_missing_logprobs(self, samples: list[Sample]) -> None:
        if self.args.importance_correction == "none" or all(sample.logprobs is not None for sample in samples):
            return
        raise ConfigError(
            f"importance_correction {self.args.importance_correction!r} needs the policy's logprobs, and it gave "
            "none: use a policy that gives them, or 'none'"
        )

    def _weigh(self, chunk: dict[str, Any], now: torch.Tensor) -> None:
        mask = chunk["tool_mask"]
        log_ratio = now - chunk["sampling_per_token_logps"]
        self._mismatch += mismatch(log_ratio, mask)
        if self.args.importance_correction == "none":
            return
        given = chunk["advantages"]
        weights = importance_weights(log_ratio, mask, self.args.importance_correction, self.args.importance_clip)
        chunk["advantages"] = (given if given.dim() == 2 else given[:, None]) * weights

    def _report_mismatch(self) -> None:
        parts: list[Mismatch] = gather_object([self._mismatch])
        whole = sum(parts, Mismatch(0.0, 0.0, 1.0))
        self._mismatch = Mismatch(0.0, 0.0, 1.0)
        if whole.tokens:
            self._record({"sampling/kl": whole.kl / whole.tokens, "sampling/ratio_max": whole.largest})

    # ---- what is told about it

    def _record(self, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            self._metrics["train"][name].append(value)

    def _show(self, trajectories: list[Trajectory], advantages: list[tuple[float, ...] | None]) -> None:
        """A row a trajectory for TRL's table of completions; as text, for reporters want columns of one type."""
        if not self.log_completions:
            return
        rows = gather_object(
            [
                (
                    format_transcript(trajectory.opening),
                    format_transcript(
                        tuple(m for turn in trajectory.turns for m in (turn.message, *turn.observations))
                    ),
                    float("nan") if trajectory.reward is None else trajectory.reward,
                    float("nan") if values is None else sum(values) / len(values),
                    trajectory.stop_reason.value,
                    trajectory.env_id,
                )
                for trajectory, values in zip(trajectories, advantages, strict=True)
            ]
        )
        logs = self._logs
        shown = (logs["prompt"], logs["completion"], logs["rewards"]["reward"], logs["advantages"])
        columns = (*shown, logs["extra"]["ending"], logs["extra"]["env"])
        for column in columns:
            column.clear()  # what is left of the step before
        for row in rows[: self.args.log_trajectories]:
            for column, value in zip(columns, row, strict=True):
                column.append(value)

    def _watch_for_empty_batches(self, trajectories: list[Trajectory], outcomes: list[Outcome]) -> None:
        if any(outcome.trained for outcome in outcomes):
            self._empty_batches = 0
            return
        self._empty_batches += 1
        first = next((t.error for t in trajectories if t.error), None)
        why = _why_empty(outcomes, first)
        _log.error("nothing of this batch may be trained on: %s", why)
        if self._empty_batches >= self.args.max_empty_batches:
            raise RunAborted(f"{self._empty_batches} batches in a row had no trajectory to train on: {why}")


def _why_empty(outcomes: list[Outcome], first: ErrorInfo | None) -> str:
    endings = ", ".join(sorted({outcome.ending.value for outcome in outcomes}))
    if any(outcome.returns is not None for outcome in outcomes):
        return f"all of them are masked by their endings, or sampled no token ({endings})"
    what = f"; the first error: {first.type}: {first.message}" if first else ""
    return f"none is valid ({endings}){what}"


def _unused_reward(completions: list[Any], **_: Any) -> list[float]:
    """TRL wants a reward function; rewards come from the environments."""
    return [0.0] * len(completions)
