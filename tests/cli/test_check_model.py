"""`skyrl check-model`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.chat.testing import tiny_tokenizer

pytest.importorskip("transformers")
Skyrl = Callable[..., Any]


def test_a_tokenizers_folder_is_checked_without_weights(skyrl: Skyrl, tmp_path: Path) -> None:
    tiny_tokenizer("thinking").save_pretrained(tmp_path)
    ran = skyrl("check-model", str(tmp_path))
    assert ran.status == 0
    assert "dialect hermes" in ran.out
    assert ran.out.count("forks") == 2
    assert "fails" not in ran.out


def test_a_dialect_that_does_not_fit_fails_with_what_came_and_what_was_expected(skyrl: Skyrl, tmp_path: Path) -> None:
    tiny_tokenizer("chatml_tools").save_pretrained(tmp_path)
    ran = skyrl("check-model", str(tmp_path), "--dialect", "mistral")
    assert ran.status == 1
    assert "fails" in ran.out and "no call" in ran.out


def test_what_is_no_model_is_said(skyrl: Skyrl, tmp_path: Path) -> None:
    assert "no model folder" in skyrl("check-model", str(tmp_path)).err
    tiny_tokenizer().save_pretrained(tmp_path)
    assert "unknown dialect 'klingon'; known: auto" in skyrl("check-model", str(tmp_path), "--dialect", "klingon").err
