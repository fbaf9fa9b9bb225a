"""Recipes: every fault is named before anything is spent."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.errors import ConfigError
from skyrl_gym.trainer.recipe import load_recipe, parse_recipe

MINIMAL: dict[str, Any] = {"name": "n", "model": "m", "env": {"id": "skyrl/memory-v0"}}


def test_a_mixture_of_environments() -> None:
    recipe = parse_recipe({**MINIMAL, "env": None, "envs": [{"id": "a"}, {"id": "b", "weight": {0: 1, 50: 0.5}}]})
    assert [(e.id, e.weight) for e in recipe.environments] == [("a", 1.0), ("b", {0: 1.0, 50: 0.5})]


def test_defaults_and_overrides(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("name: n\nmodel: m\nenv: {id: skyrl/memory-v0}\n")
    recipe = load_recipe(file, {"train.max_steps": 7, "env.kwargs.chunk_words": 9, "lora.r": 4})
    assert recipe.environments[0].kwargs == {"chunk_words": 9}
    assert recipe.dialect == "auto"
    assert (recipe.train.max_steps, recipe.lora and recipe.lora.r) == (7, 4)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"modle": "x"}, "unknown key 'modle'; did you mean 'model'"),
        ({"train": {"learning_rat": 1}}, "unknown key 'train.learning_rat'; did you mean 'learning_rate'"),
        ({"lora": {"rank": 4}}, "unknown key 'lora.rank'; known: r, lora_alpha"),
        ({"train": {"max_steps": 0}}, "train.max_steps: .*greater than or equal to 1 .got 0."),
        ({"train": {"loss_type": "ppo"}}, "train.loss_type: .*'grpo'"),
        ({"model": None}, "model: "),
        ({"env": None}, "^recipe: name one environment under `env`, or several under `envs`$"),
        ({"envs": [{"id": "a"}]}, "name one environment"),
        ({"env": {"id": "a", "kwargs": {"dialect": "react"}}}, "the dialect is the model's, .*the recipe's `dialect`"),
        ({"env": None, "envs": [{"id": "a", "wieght": 2}]}, r"unknown key 'envs\.0\.wieght'; did you mean 'weight'"),
        ({"train": {"num_generations": 1}}, "train.num_generations: .*greater than or equal to 2 .got 1."),
        ({"rollout": {"close_groups_at": 8}}, "close_groups_at is fewer than train.num_generations, 8, .* got 8"),
        ({"rollout": {"vllm_mode": "server"}}, "rollout: vllm_mode server takes the address of a server"),
        ({"rollout": {"vllm_mode": "colocate", "staleness": 1}}, "by turns on the same GPUs, .*staleness is 0; got 1"),
        ({"rollout": {"vllm_mode": "colocate", "server": "http://a/v1"}}, "starts servers of its own: leave `server`"),
        ({"rollout": {"vllm_enable_sleep_mode": True}}, "vllm_enable_sleep_mode is for vllm_mode colocate"),
        ({"rollout": {"vllm_mode": "collocate"}}, "rollout.vllm_mode: .*'colocate'"),
        ({"rollout": {"vllm_gpu_memory_utilization": 1.5}}, "less than or equal to 1 .got 1.5."),
        ({"train": {"mask_endings": ["overlong"]}}, "train.mask_endings: 'overlong' is no ending that is graded"),
        ({"train": {"importance_correction": "tis"}}, "train.importance_correction: .*'token_truncate'"),
    ],
)
def test_faults_are_named(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_recipe({**MINIMAL, **change})


def test_a_missing_key_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model: Field required"):
        parse_recipe({"name": "n", "env": {"id": "e"}})
    with pytest.raises(ConfigError, match="can't read the recipe"):
        load_recipe(tmp_path / "none.yaml")
    broken = tmp_path / "b.yaml"
    broken.write_text("a: [")
    with pytest.raises(ConfigError, match="is not YAML"):
        load_recipe(broken)


@pytest.mark.parametrize("file", sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml")), ids=lambda p: p.stem)
def test_the_shipped_recipes_are_valid(file: Path) -> None:
    recipe = load_recipe(file)
    trajectories = recipe.train.prompts_per_step * recipe.train.num_generations
    assert trajectories % recipe.train.per_device_train_batch_size == 0


def test_reading_a_recipe_loads_nothing_heavy() -> None:
    program = "import sys; import skyrl_gym.trainer.recipe; print('torch' in sys.modules or 'trl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"
