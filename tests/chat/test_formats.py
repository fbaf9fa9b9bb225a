"""What models of each family write, well and badly."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyrl_gym.chat import dialect_names, get_dialect
from skyrl_gym.messages import ToolCall, assistant
from skyrl_gym.tools import ToolSpec

TOOLS = (
    ToolSpec(
        "run",
        "Runs.",
        {
            "type": "object",
            "properties": {
                "command": {"type": "string"},
                "timeout": {"type": "integer"},
                "share": {"anyOf": [{"type": "number"}, {"type": "null"}]},
                "quiet": {"type": "boolean"},
                "files": {"type": "array", "items": {"type": "string"}},
                "mode": {"enum": ["1", "2"]},
            },
            "required": ["command"],
        },
    ),
)
RUN = ToolCall("run", {"command": "ls -la\necho '<b>'", "timeout": 3})
WRITTEN = {
    "hermes": '<tool_call>\n{"name": "run", "arguments": {"command": "ls", "timeout": 3}}\n</tool_call>',
    "qwen_xml": "<tool_call>\n<function=run>\n<parameter=command>\nls\n</parameter>\n<parameter=timeout>\n3\n"
    "</parameter>\n</function>\n</tool_call>",
    "openhands": "<function=run>\n<parameter=command>ls</parameter>\n<parameter=timeout>3</parameter>\n</function>",
    "llama": '{"name": "run", "parameters": {"command": "ls", "timeout": 3}}',
    "mistral": '[TOOL_CALLS][{"name": "run", "arguments": {"command": "ls", "timeout": 3}, "id": "abcdefghi"}]',
    "glm": "\n<tool_call>run\n<arg_key>command</arg_key>\n<arg_value>ls</arg_value>\n<arg_key>timeout</arg_key>\n"
    "<arg_value>3</arg_value>\n</tool_call>",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>run\n```json\n"
    '{"command": "ls", "timeout": 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "harmony": ' to=functions.run<|channel|>commentary <|constrain|>json<|message|>{"command": "ls", "timeout": 3}',
    "react": 'Thought: look\nAction: run\nAction Input: {"command": "ls", "timeout": 3}\nObservation: made up',
}
OTHER_FORMS = [
    ("qwen_xml", "<function=run>\n<parameter=command>\nls\n</parameter>\n</function>", {"command": "ls"}),
    ("llama", '<|python_tag|>{"type": "function", "name": "run", "parameters": {"command": "ls"}}', {"command": "ls"}),
    ("mistral", '[TOOL_CALLS]run[CALL_ID]abcdefghi[ARGS]{"command": "ls"}', {"command": "ls"}),
    ("mistral", '[TOOL_CALLS]run[ARGS]{"command": "ls"}', {"command": "ls"}),
    ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>run<｜tool▁sep｜>{\"command\": \"ls\"}<｜tool▁call▁end｜>"
     "<｜tool▁calls▁end｜>", {"command": "ls"}),
    ("harmony", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.run "
     '<|constrain|>json<|message|>{"command": "ls"}<|call|>', {"command": "ls"}),
    ("codeact", "I look.\n```run\nls\n```\n", {"command": "ls"}),
    ("hermes", '<tool_call>{"name": "run", "parameters": {"command": "ls"}}</tool_call>', {"command": "ls"}),
]  # fmt: skip


@pytest.mark.parametrize("dialect", WRITTEN)
def test_a_call_is_read_with_the_types_of_its_tool(dialect: str) -> None:
    message = get_dialect(dialect).parse(WRITTEN[dialect], TOOLS)
    assert message.tool_calls == (ToolCall("run", {"command": "ls", "timeout": 3}),)


@pytest.mark.parametrize(("dialect", "text", "arguments"), OTHER_FORMS)
def test_other_forms_of_the_same_family(dialect: str, text: str, arguments: Any) -> None:
    assert get_dialect(dialect).parse(text, TOOLS).tool_calls == (ToolCall("run", arguments),)


@pytest.mark.parametrize("dialect", [name for name in dialect_names() if name not in ("codeact", "react")])
def test_what_a_dialect_writes_it_reads(dialect: str) -> None:
    found = get_dialect(dialect).parse(get_dialect(dialect).render(assistant(None, RUN)), TOOLS)
    assert found.tool_calls == (RUN,)


@pytest.mark.parametrize(
    "dialect", ["hermes", "qwen_xml", "openhands", "llama", "mistral", "glm", "deepseek", "harmony"]
)
def test_several_calls_of_one_message(dialect: str) -> None:
    calls = (ToolCall("run", {"command": "a"}), ToolCall("run", {"command": "b"}), ToolCall("run", {"command": "c"}))
    text = get_dialect(dialect).render(assistant(None, *calls))
    assert get_dialect(dialect).parse(text, TOOLS).tool_calls == calls


@pytest.mark.parametrize("dialect", ["qwen_xml", "openhands", "glm"])
@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("timeout", "7", 7),
        ("timeout", "seven", "seven"),  # a mistake of content: the tool says what it wanted
        ("share", "0.5", 0.5),
        ("share", "null", None),
        ("quiet", "True", True),
        ("quiet", "false", False),
        ("files", '["a", "b"]', ["a", "b"]),
        ("mode", "1", "1"),
        ("command", "42", "42"),
        ("unknown", "42", "42"),
    ],
)
def test_values_without_quotes_get_their_type_from_the_schema(dialect: str, name: str, text: str, value: Any) -> None:
    written = get_dialect(dialect).render_call(ToolCall("run", {name: text}))
    (call,) = get_dialect(dialect).parse(written, TOOLS).tool_calls
    assert call == ToolCall("run", {name: value})


BROKEN = [
    ("hermes", '<tool_call>{"name": "run", "arguments": {"command": "ls"}'),
    ("hermes", '<tool_call>{"name": "run", "arguments": "ls"}</tool_call>'),
    ("qwen_xml", "<tool_call>\n<function=run>\n<parameter=command>\nls\n"),
    ("qwen_xml", "<tool_call>\nrun ls\n</tool_call>"),
    ("qwen_xml", "<tool_call>\n<function=run>\nls\n</function>\n</tool_call>"),
    ("openhands", "<function=run><parameter=command>ls</function>"),
    ("llama", '{"name": "run", "parameters": {"command": "ls"'),
    ("mistral", '[TOOL_CALLS][{"name": "run", "arguments": {"command"'),
    ("mistral", "[TOOL_CALLS]{}"),
    ("glm", "<tool_call>run\n<arg_key>command</arg_key>\n<arg_value>ls\n</tool_call>"),
    ("glm", "<tool_call>run"),
    ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>run\n```json\n{"),
    ("harmony", ' to=functions.run<|channel|>commentary json<|message|>{"command": '),
    ("react", "Action: run\n"),
    ("react", "Action: run\nAction Input: ls -la"),
    ("codeact", "```run\nls"),
]


@pytest.mark.parametrize(("dialect", "text"), BROKEN)
def test_a_mistake_of_structure_is_a_call_that_is_not_well_formed_and_keeps_its_text(dialect: str, text: str) -> None:
    (call,) = get_dialect(dialect).parse(text, TOOLS).tool_calls
    assert not call.well_formed
    assert call.arguments


@pytest.mark.parametrize("dialect", [name for name in WRITTEN if name != "harmony"])
def test_a_call_inside_a_thought_is_no_call_and_a_thought_inside_a_call_is_its_text(dialect: str) -> None:
    parse, written = get_dialect(dialect).parse, WRITTEN[dialect]
    thought = parse(f"<think>maybe\n{written}\n</think>No.", TOOLS)
    assert (thought.tool_calls, thought.text, thought.reasoning) == ((), "No.", f"maybe\n{written}\n")
    unfinished = parse(f"<think>maybe\n{written}", TOOLS)
    assert (unfinished.tool_calls, unfinished.text) == ((), "")
    call = ToolCall("run", {"command": "echo '<think>x</think>'"})
    if dialect != "react":
        assert parse(get_dialect(dialect).render_call(call), TOOLS).tool_calls == (call,)


def test_a_completion_with_only_the_end_of_its_thought() -> None:
    message = get_dialect("hermes").parse("so x < 5\n</think>\n\nFive.")
    assert (message.reasoning, message.text) == ("so x < 5\n", "\n\nFive.")
    call = '<tool_call>{"name": "run", "arguments": {"command": "</think>"}}</tool_call>'
    assert get_dialect("hermes").parse(call).tool_calls == (ToolCall("run", {"command": "</think>"}),)


def test_harmonys_channels() -> None:
    text = (
        "<|channel|>analysis<|message|>Call to=functions.run?<|end|><|start|>assistant<|channel|>commentary<|message|>"
        "I look.<|end|><|start|>assistant to=functions.run<|channel|>commentary json<|message|>{}<|call|>"
    )
    message = get_dialect("harmony").parse(text)
    assert (message.reasoning, message.text) == ("Call to=functions.run?", "I look.")
    assert message.tool_calls == (ToolCall("run", {}),)
    final = get_dialect("harmony").parse("<|channel|>final<|message|> Done. <|return|>")
    assert (final.text, final.tool_calls) == (" Done. ", ())


def test_shown_code_is_no_call_of_codeact() -> None:
    text = "Like this:\n```python\nprint(1)\n```\n"
    message = get_dialect("codeact").parse(text, TOOLS)
    assert (message.text, message.tool_calls) == (text, ())


PIECES = [*"".join(WRITTEN.values()).split(), *WRITTEN.values(), "\n", "<think>", "</think>"]


@pytest.mark.parametrize("dialect", dialect_names())
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=8).map("".join))
def test_nothing_a_model_writes_raises(dialect: str, text: str) -> None:
    message = get_dialect(dialect).parse(text, TOOLS)
    assert message.role == "assistant"
    assert all(isinstance(call.name, str) for call in message.tool_calls)
    json.dumps([call.arguments for call in message.tool_calls])


@pytest.mark.parametrize("dialect", dialect_names())
@given(st.text(alphabet=st.characters(exclude_characters="<[{`|")))
def test_plain_text_is_kept_byte_for_byte(dialect: str, text: str) -> None:
    if "Action" not in text:
        message = get_dialect(dialect).parse(text, TOOLS)
        assert (message.text, message.tool_calls) == (text, ())
