"""A recipe: everything that a training run depends on, in one YAML file."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from skyrl_gym.errors import ConfigError, StopReason

__all__ = ["Recipe", "load_recipe", "parse_recipe"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class EnvSection(_Section):
    """Which environment: a registered id and its constructor's arguments.

    `weight` is its share in a mixture: a number, or numbers at some steps with straight lines in between.
    """

    id: str
    kwargs: dict[str, Any] = Field(default_factory=dict)
    weight: float | dict[int, float] = 1.0

    @field_validator("kwargs")
    @classmethod
    def _dialect_is_the_models(cls, kwargs: dict[str, Any]) -> dict[str, Any]:
        if "dialect" in kwargs:
            raise ValueError("the dialect is the model's, one for all environments: set it as the recipe's `dialect`")
        return kwargs


class LoraSection(_Section):
    """Low-rank adapters in place of full training; names as in PEFT."""

    r: int = Field(default=16, ge=1)
    lora_alpha: int = Field(default=32, ge=1)
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    target_modules: str | list[str] = "all-linear"
    load_in_4bit: bool = Field(default=False, description="QLoRA: the frozen weights in 4 bits")


class RolloutSection(_Section):
    """How trajectories are sampled."""

    max_tokens: int = Field(default=512, ge=1, description="tokens of one completion")
    max_context: int | None = Field(default=None, ge=1, description="tokens of a prompt and its completion")
    temperature: float = Field(default=1.0, gt=0)
    live: int = Field(default=64, ge=1, description="environments at once")
    vllm_mode: Literal["server", "colocate"] | None = Field(
        default=None, description="vLLM samples: on servers of their own, or on the GPUs that train"
    )
    vllm_gpu_memory_utilization: float = Field(
        default=0.3, gt=0, le=1, description="colocate: the share of a GPU that is vLLM's while it samples"
    )
    vllm_enable_sleep_mode: bool = Field(
        default=False, description="colocate: vLLM gives its memory back while the GPU trains"
    )
    server: str | list[str] | None = Field(default=None, description="address of vLLM servers that sample")
    server_folder: str | None = Field(default=None, description="the model folder that it was started on")
    staleness: int = Field(default=0, ge=0, description="steps that rollouts may be behind: 0 is synchronous")
    episode_s: float = Field(default=3_600.0, gt=0, description="deadline of an episode, in seconds")
    close_groups_at: int | None = Field(
        default=None, ge=2, description="a group ends once so many of its trajectories are valid"
    )

    @model_validator(mode="after")
    def _vllm_is_somewhere(self) -> RolloutSection:
        if self.vllm_mode == "server" and self.server is None:
            raise ValueError("vllm_mode server takes the address of a server: set `server` and `server_folder`")
        if self.vllm_mode != "colocate":
            if self.vllm_enable_sleep_mode:
                raise ValueError("vllm_enable_sleep_mode is for vllm_mode colocate: elsewhere nobody needs the memory")
            return self
        if self.server is not None or self.server_folder is not None:
            raise ValueError("vllm_mode colocate starts servers of its own: leave `server` and `server_folder` out")
        if self.staleness:
            raise ValueError(
                "vllm_mode colocate samples and trains by turns on the same GPUs, so nothing can be sampled ahead: "
                f"staleness is 0; got {self.staleness}. Rollouts ahead of training take vllm_mode server"
            )
        return self


class TrainSection(_Section):
    """The optimisation; names as in TRL's GRPOConfig where it has them."""

    max_steps: int = Field(default=100, ge=1)
    prompts_per_step: int = Field(default=8, ge=1, description="tasks of one optimizer step")
    num_generations: int = Field(default=8, ge=2, description="trajectories of one task: the group")
    per_device_train_batch_size: int = Field(default=8, ge=1, description="sequences of one forward pass")
    max_forward_tokens: int | None = Field(default=None, ge=1, description="tokens of one, padding included")
    share_prefixes: bool = Field(default=True, description="read what sequences have in common once")
    learning_rate: float = Field(default=1e-6, gt=0)
    lr_scheduler_type: str = "constant"
    warmup_steps: int = Field(default=0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    loss_type: Literal["grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"] = "dapo"
    advantage: Literal["group", "mean", "leave_one_out", "batch"] = "group"
    turn_discount: float | None = Field(default=None, ge=0, le=1, description="credit by turn")
    mask_endings: list[str] = Field(default_factory=list, description="in the baseline, not in the loss")
    drop_zero_variance: bool = False
    refill_rounds: int = Field(default=0, ge=0, description="dynamic sampling: rounds for groups without a signal")
    beta: float = Field(default=0.0, ge=0, description="weight of the KL term against the starting model")
    importance_correction: Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = (
        "none"
    )
    importance_clip: float = Field(default=2.0, ge=1, description="the ratio above which it truncates or masks")
    gradient_checkpointing: bool = False
    bf16: bool = True
    attn_implementation: str | None = Field(default=None, description="as in transformers")
    save_steps: int | None = Field(
        default=None, ge=1, description="steps from checkpoint to checkpoint; none unless given"
    )

    @field_validator("mask_endings")
    @classmethod
    def _graded(cls, names: list[str]) -> list[str]:
        graded = [reason.value for reason in StopReason if reason.valid]
        if unknown := [name for name in names if name not in graded]:
            raise ValueError(f"{unknown[0]!r} is no ending that is graded; those are {', '.join(graded)}")
        return names


class LogSection(_Section):
    """What is told, beside metrics.jsonl and the report."""

    report_to: list[Literal["trackio", "wandb", "tensorboard", "mlflow", "swanlab"]] = Field(default_factory=list)
    trajectories: int = Field(default=0, ge=0, description="of each step, in a table")


class HardwareSection(_Section):
    """What the run is planned for (`skyrl plan`)."""

    gpus: int = Field(default=0, ge=0, description="that train: one process each; 0 for a CPU")
    memory_gb: float = Field(default=16.0, gt=0, description="of one GPU, or of the machine without")
    sharding: Literal["none", "fsdp2", "zero3"] = "none"
    sampling_gpus: int = Field(
        default=0, ge=0, description="that the server has; 0 where a copy samples in the process"
    )
    tensor_parallel: int = Field(default=1, ge=1, description="GPUs that hold one copy of the server's model")


class EvalSection(_Section):
    """The evaluation before and after training, on the test split of each environment; 0 tasks: none."""

    tasks: int = Field(default=50, ge=0)
    samples: int = Field(default=2, ge=1)
    temperature: float = Field(default=1.0, ge=0)
    split: str = "test"


class Recipe(_Section):
    """A training run, in one environment (`env`) or in a mixture (`envs`)."""

    name: str
    model: str
    env: EnvSection | None = None
    envs: tuple[EnvSection, ...] = ()
    seed: int = 0
    train_tasks: int | None = Field(default=None, ge=1, description="the first n of the train split; all unless given")
    dialect: str = Field(default="auto", description="how the model writes tool calls; auto: as its template does")
    rollout: RolloutSection = RolloutSection()
    train: TrainSection = TrainSection()
    lora: LoraSection | None = None
    eval: EvalSection = EvalSection()
    log: LogSection = LogSection()
    hardware: HardwareSection = HardwareSection()

    @property
    def environments(self) -> tuple[EnvSection, ...]:
        """What is trained in."""
        return self.envs if self.env is None else (self.env,)

    @model_validator(mode="after")
    def _one_way_to_name_environments(self) -> Recipe:
        if (self.env is None) == (not self.envs):
            raise ValueError("name one environment under `env`, or several under `envs`")
        return self

    @model_validator(mode="after")
    def _groups_that_can_be_closed(self) -> Recipe:
        enough, size = self.rollout.close_groups_at, self.train.num_generations
        if enough is not None and enough >= size:
            raise ValueError(
                f"rollout.close_groups_at is fewer than train.num_generations, {size}, of which the rest is spare; "
                f"got {enough}"
            )
        return self

    def closes_groups_spread_over(self, processes: int) -> bool:
        """Whether it would close groups that are played by several processes, none of which sees a whole one: rollouts
        by turns share out trajectories, rollouts ahead whole groups."""
        return self.rollout.close_groups_at is not None and processes > 1 and not self.rollout.staleness


def load_recipe(path: str | Path, overrides: dict[str, Any] | None = None) -> Recipe:
    """A recipe from a YAML file; `overrides` maps dotted keys ("train.max_steps") to values.

    Raises:
        ConfigError: no such file, not YAML, an unknown key (the nearest valid one is named), a bad value.
    """
    file = Path(path)
    try:
        data = yaml.safe_load(file.read_text())
    except OSError as error:
        raise ConfigError(f"can't read the recipe {file}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: a recipe is a mapping with the keys {', '.join(Recipe.model_fields)}")
    for key, value in (overrides or {}).items():
        _override(data, key, value)
    return parse_recipe(data, str(file))


def parse_recipe(data: dict[str, Any], where: str = "recipe") -> Recipe:
    """A recipe from plain values.

    Raises:
        ConfigError: an unknown key or a bad value; every fault is named.
    """
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        faults = [_explain(tuple(map(str, e["loc"])), e["type"], e["msg"], e["input"]) for e in error.errors()]
        raise ConfigError(f"{where}: {'; '.join(faults)}") from None


def _override(data: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        inner = data.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"can't set {key!r}: {part!r} is no section")
        data = inner
    data[last] = value


def _explain(where: tuple[str, ...], kind: str, message: str, value: Any) -> str:
    name = ".".join(where)
    if kind == "value_error":
        return ": ".join(filter(None, [name, message.removeprefix("Value error, ")]))
    if kind != "extra_forbidden":
        return f"{name}: {message}" + ("" if kind == "missing" else f" (got {value!r:.60})")
    known = _keys(where[:-1])
    near = difflib.get_close_matches(where[-1], known, n=1)
    return f"unknown key {name!r}" + (f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}")


def _keys(section: tuple[str, ...]) -> list[str]:
    """The valid keys of a section of the recipe."""
    model: type[BaseModel] = Recipe
    for part in section:
        if not part.isdigit():  # a place in a list
            model = _section_type(model.model_fields[part].annotation)
    return list(model.model_fields)


def _section_type(annotation: Any) -> type[BaseModel]:
    """The section behind `Section`, `Section | None` or `tuple[Section, ...]`."""
    options = get_args(annotation) or (annotation,)
    return next(option for option in options if isinstance(option, type) and issubclass(option, BaseModel))
