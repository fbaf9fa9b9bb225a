"""Messages and their OpenAI form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyrl_gym.errors import MessageError
from skyrl_gym.messages import ImagePart, Message, TextPart, ToolCall, assistant, from_openai, to_openai, tool_result

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=8,
)
calls = st.builds(ToolCall, st.text(min_size=1), st.dictionaries(st.text(), json_values, max_size=3), st.text())
parts = st.builds(TextPart, st.text()) | st.builds(ImagePart, st.text())
contents = st.none() | st.text() | st.lists(parts, max_size=3).map(tuple)
messages = st.one_of(
    st.builds(Message, st.sampled_from(["system", "user"]), contents),
    st.builds(
        Message, st.just("assistant"), contents, st.lists(calls, max_size=3).map(tuple), reasoning=st.none() | st.text()
    ),
    st.builds(Message, st.just("tool"), contents, tool_call_id=st.text(), name=st.none() | st.text()),
)


@given(messages)
def test_openai_form_round_trips(message: Message) -> None:
    assert from_openai(to_openai(message)) == message


@pytest.mark.parametrize("arguments", ["", "[1]", "{broken", "null", '"text"'])
def test_malformed_arguments_are_kept_as_they_came(arguments: str) -> None:
    call = ToolCall("f", arguments)
    assert not call.well_formed
    back = from_openai(to_openai(assistant(None, call))).tool_calls[0]
    assert back.arguments == (arguments or {})


def test_a_tool_message_needs_the_id_of_its_call() -> None:
    with pytest.raises(MessageError, match="tool_call_id"):
        Message("tool", "text")
    assert tool_result(ToolCall("f", {}, "c1"), "text").tool_call_id == "c1"


@pytest.mark.parametrize(
    "data", [None, {}, {"role": "robot"}, {"role": "user", "content": 3}, {"role": "user", "tool_calls": [{}]}]
)
def test_bad_messages_are_refused_in_words(data: object) -> None:
    with pytest.raises(MessageError):
        from_openai(data)  # type: ignore[arg-type]
