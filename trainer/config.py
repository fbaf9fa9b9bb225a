"""TRL's GRPO configuration, plus what several turns need."""

from __future__ import annotations

from dataclasses import dataclass, field

from trl import GRPOConfig

from skyrl_gym.errors import ConfigError, StopReason
from skyrl_gym.trainer.advantages import Estimator
from skyrl_gym.trainer.corrections import Correction

__all__ = ["MultiTurnGRPOConfig"]


@dataclass
class MultiTurnGRPOConfig(GRPOConfig):  # type: ignore[misc]
    """`GRPOConfig`, its batch sizes counted in trajectories.

    `per_device_train_batch_size` also bounds the sequences of one forward pass; `loss_type`, `epsilon`,
    `beta`, `learning_rate` and all the rest mean what they mean in TRL. `advantage` stands for
    `scale_rewards`, `mask_endings` for `mask_truncated_completions`, `importance_correction` for
    `vllm_importance_sampling_mode`; rollouts take nothing from here.
    """

    advantage: Estimator = field(
        default="group", metadata={"help": "group, mean, leave_one_out or batch; see trainer/advantages.py"}
    )
    turn_discount: float | None = field(
        default=None,
        metadata={"help": "credit each turn with its own and the discounted later rewards; None: all turns alike"},
    )
    mask_endings: list[str] = field(
        default_factory=list,
        metadata={"help": "stop reasons whose trajectories are in the baseline but not in the loss"},
    )
    drop_zero_variance: bool = field(
        default=False, metadata={"help": "leave groups of equal rewards out, as if they had not been drawn"}
    )
    refill_rounds: int = field(
        default=0,
        metadata={"help": "draw groups anew in place of those without a signal, so often at most (dynamic sampling)"},
    )
    importance_correction: Correction = field(
        default="none", metadata={"help": "weights for what was sampled under another distribution"}
    )
    importance_clip: float = field(default=2.0, metadata={"help": "the ratio above which it truncates or masks"})
    max_forward_tokens: int | None = field(
        default=None, metadata={"help": "tokens of one forward pass, padding included, shared ones once"}
    )
    share_prefixes: bool = field(
        default=True,
        metadata={"help": "read what sequences have in common once, where the model allows it and it pays"},
    )
    log_trajectories: int | None = field(
        default=None, metadata={"help": "with log_completions: so many of each step in the table; None: all"}
    )
    max_empty_batches: int = field(
        default=3, metadata={"help": "batches in a row without a trajectory to train on before training stops"}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_iterations != 1:
            raise ConfigError(f"num_iterations is 1 here (each batch is used once); got {self.num_iterations}")
        if self.steps_per_generation != self.gradient_accumulation_steps:
            raise ConfigError(
                "steps_per_generation equals gradient_accumulation_steps here (one rollout phase an optimizer step); "
                f"got {self.steps_per_generation} and {self.gradient_accumulation_steps}"
            )
        if self.turn_discount is not None and not 0 <= self.turn_discount <= 1:
            raise ConfigError(f"turn_discount is from 0 to 1; got {self.turn_discount:g}")
        if self.mask_truncated_completions or self.use_vllm or self.use_liger_kernel:
            raise ConfigError(
                "mask_truncated_completions, use_vllm and use_liger_kernel are TRL's own rollouts and losses; here "
                "it is mask_endings, a policy of the rollout's, and TRL's losses in torch"
            )
        _ = self.masked_endings

    @property
    def masked_endings(self) -> frozenset[StopReason]:
        """`mask_endings` as values.

        Raises:
            ConfigError: one is no stop reason, or one that is excluded anyhow.
        """
        valid = [reason.value for reason in StopReason if reason.valid]
        if unknown := [name for name in self.mask_endings if name not in valid]:
            raise ConfigError(f"mask_endings: {unknown[0]!r} is no ending that is graded; those are {', '.join(valid)}")
        return frozenset(map(StopReason, self.mask_endings))

    @property
    def drops_flat_groups(self) -> bool:
        """Groups without a signal are left out: asked for, or replaced by others."""
        return self.drop_zero_variance or self.refill_rounds > 0

    @property
    def groups_per_step(self) -> int:
        """Tasks of one optimizer step, on all processes together."""
        return int(self.generation_batch_size // self.num_generations)
