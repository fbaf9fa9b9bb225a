"""`--set key=value`."""

from typing import Any

import pytest

from skyrl_gym.cli.settings import parse_settings, parse_value
from skyrl_gym.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e-5", 1e-5),
        ("true", True),
        ("null", None),
        ("[a, 2]", ["a", 2]),
        ('{"a": 1}', {"a": 1}),
        ("{a: 1}", {"a": 1}),
        ("plain words", "plain words"),
        ("a=b", "a=b"),
        ("", None),
        ("[unclosed", "[unclosed"),
    ],
)
def test_a_value_is_json_or_yaml_or_text(text: str, value: Any) -> None:
    assert parse_value(text) == value


def test_settings_are_split_at_the_first_equals_sign() -> None:
    assert parse_settings(["a=1", "b.c=x=y"]) == {"a": 1, "b.c": "x=y"}
    assert parse_settings(None) == {}


@pytest.mark.parametrize(
    ("pairs", "said"), [(["a"], "key=value; got 'a'"), (["=1"], "key=value"), (["a=1", "a=2"], "gives 'a' twice")]
)
def test_other_words_are_refused(pairs: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_settings(pairs)
