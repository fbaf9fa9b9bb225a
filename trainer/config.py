"""TRL's GRPO configuration, plus what several turns need."""

from __future__ import annotations

from dataclasses import dataclass, field

from trl import GRPOConfig

from skyrl_gym.errors import ConfigError
from skyrl_gym.trainer.advantages import Estimator

__all__ = ["MultiTurnGRPOConfig"]


@dataclass
class MultiTurnGRPOConfig(GRPOConfig):  # type: ignore[misc]
    """`GRPOConfig`, its batch sizes counted in trajectories.

    `per_device_train_batch_size` also bounds the sequences of one forward pass; `loss_type`, `epsilon`,
    `beta`, `learning_rate` and all the rest mean what they mean in TRL. `scale_rewards` is replaced by
    `advantage`.
    """

    advantage: Estimator = field(
        default="group", metadata={"help": "group, mean, leave_one_out or batch; see trainer/advantages.py"}
    )
    importance_correction: bool = field(
        default=False,
        metadata={"help": "weight tokens by the truncated ratio of training to sampling probability"},
    )
    importance_clip: float = field(default=2.0, metadata={"help": "upper bound of that ratio"})
    max_empty_batches: int = field(
        default=3, metadata={"help": "batches in a row without one valid trajectory before training stops"}
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
