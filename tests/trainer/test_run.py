"""`train`: what is wrong with a run is said before a model is loaded or a file is written."""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.errors import ConfigError, MissingDependency, StopReason
from skyrl_gym.evaluate.spec import read_provenance
from skyrl_gym.trainer.recipe import parse_recipe
from tests.trainer.say import GROUPS, SIZE, run, trajectories

pytestmark = pytest.mark.filterwarnings("default::FutureWarning")
RECIPE: dict[str, Any] = {
    "name": "n",
    "model": "nowhere/model",
    "env": {"id": "skyrl/memory-v0", "kwargs": {"document_words": 60, "chunk_words": 30}},
}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"env": {"id": "skyrl/memry-v0"}}, "unknown environment 'skyrl/memry-v0'; did you mean 'skyrl/memory-v0'"),
        ({"env": {"id": "skyrl/memory-v0", "kwargs": {"chunk": 3}}}, "has no setting 'chunk'"),
        ({"env": None, "envs": [{"id": "skyrl/memory-v0"}, {"id": "skyrl/nothing-v0"}]}, "'skyrl/nothing-v0'"),
        ({"env": {"id": "skyrl/memory-v0", "weight": -1}}, "a weight is 0 or more"),
        ({"train": {"prompts_per_step": 3, "num_generations": 3}}, "3 x .* = 9 must be a multiple|= 9 must be"),
        ({}, "can't load the model nowhere/model|no such model|nowhere/model"),
    ],
)
def test_a_fault_is_named_and_nothing_is_left(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    from skyrl_gym.trainer.run import train

    with pytest.raises(ConfigError, match=says):
        train(parse_recipe({**RECIPE, **change}), tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()


def test_vllm_beside_the_trainer_has_to_be_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from skyrl_gym.trainer.run import train

    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("SKYRL_VLLM", raising=False)
    if Path(sys.executable).with_name("vllm").exists():
        pytest.skip("vLLM is installed here")
    with pytest.raises(MissingDependency, match="pip install vllm"):
        train(parse_recipe({**RECIPE, "rollout": {"vllm_mode": "colocate"}}), tmp_path / "run")


def test_groups_that_are_spread_over_processes_are_not_closed_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from skyrl_gym.trainer.run import train

    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"2 processes .* share each group: set rollout.staleness"):
        train(parse_recipe({**RECIPE, "rollout": {"close_groups_at": 4}}), tmp_path / "run")
    whole = parse_recipe({**RECIPE, "rollout": {"close_groups_at": 4, "staleness": 1}})
    assert not whole.closes_groups_spread_over(2)


def test_a_folder_that_is_in_use_is_gone_on_with_only_on_demand_and_by_its_own_recipe(tmp_path: Path) -> None:
    from skyrl_gym.trainer.run import train

    recipe = parse_recipe(RECIPE)
    config = json.loads(recipe.model_dump_json())
    (tmp_path / "run.json").write_text(json.dumps({"kind": "train", "config": config, "provenance": {}}))
    with pytest.raises(ConfigError, match="holds a run already; give another name, or --resume"):
        train(recipe, tmp_path)
    other = parse_recipe({**RECIPE, "seed": 1, "train": {"max_steps": 2}})
    with pytest.raises(ConfigError, match=r"a run of another recipe .it differs in seed, train."):
        train(other, tmp_path, resume=True)


@pytest.mark.timeout(300)
def test_groups_with_spare_trajectories_end_early_and_evaluations_tell_their_images(place: Path) -> None:
    """One at a time, so that it is always the last of each group that is not needed."""
    words = ["train", "recipe.yaml", "--registry", "registry.yaml", "--name", "r"]
    settings = {"rollout.close_groups_at": SIZE - 1, "rollout.live": 1, "train.max_steps": 2, "train.refill_rounds": 0}
    for key, value in settings.items():
        words += ["--set", f"{key}={value}"]
    done = run(place, "-m", "skyrl_gym", *words)
    assert done.returncode == 0, done.stderr[-3_000:]
    folder = place / "runs/r"
    endings = Counter((t.group, t.stop_reason is StopReason.SURPLUS) for t in trajectories(folder))
    assert set(endings.values()) == {1, SIZE - 1} and len(endings) == 2 * 2 * GROUPS
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [step["excluded"] for step in steps] == [GROUPS, GROUPS]
    for when in ("before", "after"):
        spec, depends_on = read_provenance(folder / "eval" / when)
        assert (spec.env, depends_on["images"]) == ("say-v0", {"nowhere.example/say": None})
