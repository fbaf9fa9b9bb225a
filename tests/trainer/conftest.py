"""A tiny model, and trajectories for it that were recorded, not sampled."""

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

from skyrl_gym import StopReason, TaskSet, assistant
from skyrl_gym.chat.testing import tiny_tokenizer
from skyrl_gym.rollout import RolloutRequest, Trajectory, Transition, Turn
from skyrl_gym.trainer.source import Share
from skyrl_gym.trainer.stream import Ingredient, TaskStream
from skyrl_gym.trainer.testing import tiny_model
from skyrl_gym.trainer.weights import plain_weights

GROUP = 4
TASKS = TaskSet.from_rows([{"id": f"t{i}"} for i in range(4)])


def recorded(request: RolloutRequest, *, forks: bool = False) -> Trajectory:
    """Two turns whose ids and reward depend on the request's name alone; lengths differ."""
    rng = random.Random(f"{request.task.id}/{request.sample % GROUP}")

    def ids(count: int) -> tuple[int, ...]:
        return tuple(rng.randint(3, 399) for _ in range(count))

    # One prompt a task, as in any group.
    opening = tuple(random.Random(request.task.id).randint(3, 399) for _ in range(6))
    first, between, second = ids(rng.randint(2, 9)), ids(3), ids(rng.randint(2, 9))
    whole = opening + first + between
    turns = (
        Turn(assistant("a"), (), Transition(opening, first, None, 0, fork=True)),
        Turn(assistant("b"), (), Transition(whole if forks else between, second, None, 0, fork=forks)),
    )
    return Trajectory(
        request.env_id, request.task.id, request.task.hash, request.group, request.sample, StopReason.DONE,
        turns=turns, reward=float(rng.randint(0, 3)),
    )  # fmt: skip


class Recorded:
    """A rollout source that replays; `change` may alter each trajectory, which it is given with its number."""

    def __init__(
        self,
        *,
        forks: bool = False,
        excluded: frozenset[int] = frozenset(),
        change: Callable[[int, Trajectory], Trajectory] = lambda number, trajectory: trajectory,
    ) -> None:
        self.forks = forks
        self.excluded = excluded
        self.change = change
        self.drawn: list[int] = []
        self.share = Share(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
        self.stream = TaskStream([Ingredient("test", TASKS)], len(TASKS))

    @property
    def position(self) -> int:
        return self.stream.position

    def sync(self, weights: Any, version: int) -> None:
        pass

    def draw(self, groups: int) -> list[Trajectory]:
        self.drawn.append(groups)
        requests = [r for _ in range(groups) for r in self.stream.next().requests(GROUP)]
        return [self._trajectory(request) for request in self.share.of(requests)]

    def _trajectory(self, request: RolloutRequest) -> Trajectory:
        found = self.change(request.sample, recorded(request, forks=self.forks))
        if request.sample in self.excluded:
            return replace(found, stop_reason=StopReason.SANDBOX_LOST, reward=None)
        return found


def odd_ones_begin_alone(number: int, trajectory: Trajectory) -> Trajectory:
    """Every second trajectory has nothing in common with any other, nor its turns with each other."""
    if number % 2 == 0:
        return trajectory

    def alone(turn: Turn, start: int) -> Turn:
        assert turn.transition is not None
        ids = (start, *turn.transition.input_ids[1:])
        return replace(turn, transition=replace(turn.transition, input_ids=ids))

    turns = tuple(alone(turn, 100 + 2 * number + place) for place, turn in enumerate(trajectory.turns))
    return replace(trajectory, turns=turns)


def adapters() -> Any:
    """Of which both halves change in the first step."""
    from peft import LoraConfig

    return LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")


def one_step(
    folder: Path,
    source: Any,
    *,
    rows: int = 8,
    model: Any = None,
    peft: Any = None,
    kept: Callable[[dict[str, torch.Tensor]], None] = lambda weights: None,
    **settings: Any,
) -> dict[str, torch.Tensor]:
    """The weights after one SGD step with learning rate 1; `kept` gets them as a plain model has them."""
    from skyrl_gym.trainer.config import MultiTurnGRPOConfig
    from skyrl_gym.trainer.grpo import MultiTurnGRPOTrainer

    world = int(os.environ.get("WORLD_SIZE", "1"))
    steps = 16 // (rows * world)
    config = MultiTurnGRPOConfig(
        output_dir=str(folder), per_device_train_batch_size=rows, gradient_accumulation_steps=steps,
        steps_per_generation=steps, num_generations=GROUP,
        max_grad_norm=1e9, lr_scheduler_type="constant", bf16=False, use_cpu=True,
        save_strategy="no", disable_tqdm=True, logging_steps=1, max_completion_length=32, temperature=1.0, seed=0,
        **{"max_steps": 1, "learning_rate": 1.0, "optim": "sgd", "gradient_checkpointing": False, "report_to": "none"}
        | settings,
    )  # fmt: skip
    model = tiny_model() if model is None else model
    trainer = MultiTurnGRPOTrainer(
        source=source, args=config, model=model, processing_class=tiny_tokenizer(), peft_config=peft
    )
    trainer.train()
    source.log = {k: v for line in trainer.state.log_history for k, v in line.items()}
    model = trainer.accelerator.unwrap_model(trainer.model)
    kept(dict(plain_weights(model)))
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """The largest difference of any weight."""
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def tools() -> Any:
    """What the tests of this folder share."""

    class Tools:
        GROUP, TASKS = GROUP, TASKS
        tiny_model, one_step, distance = staticmethod(tiny_model), staticmethod(one_step), staticmethod(distance)
        adapters = staticmethod(adapters)
        recorded, odd_ones_begin_alone = staticmethod(recorded), staticmethod(odd_ones_begin_alone)
        Recorded = Recorded

    return Tools


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a model, an environment and a recipe."""
    from tests.trainer.say import write_place

    write_place(tmp_path)
    return tmp_path
