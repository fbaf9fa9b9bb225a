"""Dialects: reading and writing calls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyrl_gym.chat import HermesDialect, get_dialect
from skyrl_gym.errors import ConfigError
from skyrl_gym.messages import ToolCall

HERMES = HermesDialect()
values = st.text() | st.integers() | st.booleans() | st.none()


@given(st.text(min_size=1), st.dictionaries(st.text(), values, max_size=4))
def test_a_rendered_call_is_read_back(name: str, arguments: dict[str, object]) -> None:
    call = ToolCall(name, arguments)
    text = HERMES.render_call(call)
    if "</tool_call>" not in text[:-12]:
        assert HERMES.parse(text).tool_calls == (call,)


@given(st.text(), st.sampled_from(["<tool_call>", "</tool_call>", '{"name": "f"', "\x00", "[]"]), st.text())
def test_nothing_a_model_writes_raises(before: str, middle: str, after: str) -> None:
    message = HERMES.parse(before + middle + after)
    assert message.role == "assistant"


def test_text_around_calls_is_content_and_plain_text_is_kept_byte_for_byte() -> None:
    message = HERMES.parse(' I look.\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call> ')
    assert message.content == " I look.\n "
    assert message.tool_calls == (ToolCall("f", {"x": 1}),)
    assert HERMES.parse("  a \n").content == "  a \n"
    assert HERMES.parse("").content == ""


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "f", "arguments": {"x": 1}}',
        '<tool_call>{"name": "f", "arguments": {"x": }</tool_call>',
        '<tool_call>{"name": "f"',
        "<tool_call>",
        '<tool_call>["f"]</tool_call>',
    ],
)
def test_a_malformed_or_unclosed_call_is_a_call_that_is_not_well_formed(text: str) -> None:
    (call,) = HERMES.parse(text).tool_calls
    assert not call.well_formed
    assert call.name in ("f", "")


def test_several_calls_and_arguments_written_as_json_text() -> None:
    text = (
        '<tool_call>{"name":"a","arguments":{}}</tool_call>'
        '<tool_call>{"name":"b","arguments":"{\\"x\\":2}"}</tool_call>'
    )
    assert HERMES.parse(text).tool_calls == (ToolCall("a", {}), ToolCall("b", {"x": 2}))


def test_unknown_dialects_are_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'klingon'; known: auto, hermes"):
        get_dialect("klingon")
