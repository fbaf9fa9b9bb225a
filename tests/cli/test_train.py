"""`skyrl train`: what is refused before anything heavy is loaded. A whole run is in tests/project/test_readme.py."""

import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Skyrl = Callable[..., Any]
RECIPE = "name: mine\nmodel: nowhere/model\nenv: {id: colour-v0}\n"


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.recipe.yaml").write_text(RECIPE)
    return "mine.recipe.yaml"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "train.max_step=3"], "unknown key 'train.max_step'; did you mean 'max_steps'?"),
        (["--set", "trian.max_steps=3"], "unknown key 'trian'; did you mean 'train'?"),
        (["--set", "train.max_steps=many"], "train.max_steps: "),
        (["--set", "train.max_steps"], "--set takes key=value; got 'train.max_steps'"),
        (["--set", "name.first=x"], "'name' is no section"),
    ],
)
def test_a_wrong_key_is_refused_before_torch_is_loaded(skyrl: Skyrl, recipe: str, words: list[str], said: str) -> None:
    heavy = "torch" in sys.modules
    ran = skyrl("train", recipe, *words)
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert said in ran.err
    assert ("torch" in sys.modules) == heavy
    assert not Path("runs").exists()


def test_a_missing_recipe_is_named(skyrl: Skyrl, recipe: str) -> None:
    ran = skyrl("train", "recipes/quikstart.yaml")
    assert ran.status == 2
    assert "can't read the recipe recipes/quikstart.yaml: No such file" in ran.err


def test_a_missing_extra_says_how_to_get_it(skyrl: Skyrl, recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    version = importlib.metadata.version

    def without_trl(package: str) -> str:
        if package == "trl":
            raise importlib.metadata.PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr(importlib.metadata, "version", without_trl)
    ran = skyrl("train", recipe)
    assert ran.status == 2
    assert "missing trl; get it with: pip install 'skyrl-suite[train]'" in ran.err
    shown = skyrl("doctor")
    assert shown.status == 0
    assert "missing trl" in shown.out and "pip install 'skyrl-suite[train]'" in shown.out
    assert skyrl("doctor", "--strict").status == 1
