"""The conformance kit over the published chat templates of the families that people train."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyrl_gym.chat import Renderer, TokenTracker, detect_dialect
from skyrl_gym.chat.conformance import check_renderer
from skyrl_gym.chat.testing import tiny_tokenizer, tokenizer_with
from skyrl_gym.errors import ConfigError
from skyrl_gym.messages import Message, ToolCall, assistant, system, tool_result, user
from skyrl_gym.tools import ToolSpec

trl = pytest.importorskip("trl")
TEMPLATES = Path(trl.__file__).parent / "chat_templates"
# Family -> its dialect, and what the kit says: a letter for each check, f for fork.
FAMILIES = {
    "qwen2_5": ("hermes", "............."),
    "qwen3": ("hermes", "...f........."),
    "qwen3_instruct_2507": ("hermes", "............."),
    "qwen3_5_think": ("qwen_xml", "f..f........."),
    "qwen3_5_nothink": ("qwen_xml", "f..ff........"),
    "qwen3_8": ("qwen_xml", "............."),
    "nemotron_3_nano": ("qwen_xml", "ffff........."),
    "llama3": ("hermes", "............."),
    "llama3_1": ("llama", "....f........"),
    "llama3_2": ("llama", "....f........"),
    "glm4moe": ("glm", "...f........."),
    "gptoss": ("harmony", "...f........."),
    "deepseekv3": ("deepseek", "ffff........."),
    "deepseek_r1_distill": ("deepseek", "fffff........"),
    "phi3": ("hermes", "............."),
    "gemma3": ("hermes", "............."),
    "cohere": ("hermes", "............."),
}
TINY = {
    "chatml": ("hermes", "............."),
    "chatml_tools": ("hermes", "............."),
    "thinking": ("hermes", "...ff........"),
    "mistral": ("mistral", "fffff........"),
}
TOOLS = (ToolSpec("look", "Looks.", {"type": "object", "properties": {"x": {"type": "string"}}}),)


def published(name: str) -> Any:
    path = TEMPLATES / f"{name}.jinja"
    if not path.is_file():
        pytest.skip(f"this TRL ships no template {name}")
    return tokenizer_with(path.read_text())


def tokenizer_of(name: str) -> Any:
    return tiny_tokenizer(name) if name in TINY else published(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [*FAMILIES, *TINY])
def test_a_family_passes_the_kit_with_the_dialect_of_its_template(name: str) -> None:
    dialect, expected = (FAMILIES | TINY)[name]
    renderer = Renderer(tokenizer_of(name))
    verdicts = check_renderer(renderer)
    assert renderer.dialect.name == dialect
    assert [verdict for verdict in verdicts if verdict.outcome == "fails"] == []
    assert "".join("f" if verdict.outcome == "forks" else "." for verdict in verdicts) == expected


@pytest.mark.parametrize("name", ["chatml", "gemma3", "phi3"])
@pytest.mark.parametrize("dialect", ["openhands", "react", "codeact", "qwen_xml", "glm"])
def test_models_without_a_tool_template_can_be_shown_any_dialect(name: str, dialect: str) -> None:
    verdicts = check_renderer(Renderer(tokenizer_of(name), dialect))
    assert [
        verdict for verdict in verdicts if verdict.outcome == "fails" and "template writes" not in verdict.check
    ] == []


@pytest.mark.parametrize("name", [*FAMILIES, *TINY])
def test_a_turn_that_is_only_a_call_has_the_same_ids_however_its_missing_text_is_written(name: str) -> None:
    """None, as a server sends it, and "", as a parser may leave it: neither is written, nor breaks the prefix."""
    renderer = RENDERERS.setdefault(name, Renderer(tokenizer_of(name)))
    call = ToolCall("look", {"x": "1"}, "callaaaa1")
    sampled = (*renderer.tokenizer.encode(renderer.dialect.render_call(call)), min(renderer.eos_ids))

    def prompts(turn: Message) -> tuple[list[tuple[int, ...]], int]:
        tracker = TokenTracker(renderer, TOOLS)
        conversation: tuple[Message, ...] = (user("q"),)
        found = []
        for _ in range(3):
            found.append(tracker.advance(conversation).prompt_ids)
            tracker.record(sampled)
            conversation = (*conversation, turn, tool_result(call, "seen"))
        return [*found, renderer.prompt_ids(conversation, TOOLS)], tracker.forks

    written, forks = prompts(assistant(None, call))
    for empty in ("", ()):
        assert prompts(assistant(empty, call)) == (written, forks)
    assert forks == (2 if renderer.rewrites_history("tool", thinking=False) else 0)
    assert renderer.decode(written[-1]).count("None") == renderer.decode(written[0]).count("None")


def test_thinking_can_be_switched_off_and_then_history_is_rewritten_by_qwen3s_template() -> None:
    on, off = (Renderer(published("qwen3"), thinking=thinking) for thinking in (True, False))
    asked = (user("q"),)
    assert off.decode(off.prompt_ids(asked)).endswith("<think>\n\n</think>\n\n")
    assert on.decode(on.prompt_ids(asked)).endswith("assistant\n")
    assert not on.rewrites_history("user", thinking=False)
    assert off.rewrites_history("user", thinking=False)


def test_a_thought_stays_during_a_tool_loop_and_forks_at_the_next_question() -> None:
    renderer = Renderer(published("qwen3"))
    tracker = TokenTracker(renderer, TOOLS)
    conversation: tuple[Message, ...] = (system("s"), user("q"))
    tracker.advance(conversation)
    for turn, forks in enumerate((0, 0, 1)):
        call = '<tool_call>\n{"name": "look", "arguments": {"x": "1"}}\n</tool_call>'
        text = f"<think>\nstep {turn}\n</think>\n\n{call}"
        sampled = (*renderer.tokenizer.encode(text, add_special_tokens=False), *renderer.eos_ids)
        tracker.record(sampled)
        message = renderer.parse(sampled, TOOLS)
        assert message.reasoning == f"\nstep {turn}\n"
        assert message.tool_calls == (ToolCall("look", {"x": "1"}),)
        added = tool_result(message.tool_calls[0], "seen") if turn < 2 else user("and now?")
        conversation = (*conversation, message, added)
        tracker.advance(conversation)
        assert tracker.forks == forks


def test_a_prompt_that_opens_the_thought_makes_all_up_to_its_end_thought() -> None:
    renderer = Renderer(published("qwen3_5_think"))
    assert renderer.opens_thought
    call = renderer.dialect.render_call(ToolCall("look", {"x": "1"}))

    def parse(text: str) -> Message:
        return renderer.parse(renderer.tokenizer.encode(text, add_special_tokens=False), TOOLS)

    cut = parse(f"I could write {call} but")
    assert (cut.tool_calls, cut.text) == ((), "")
    done = parse(f"I could write {call} but no.\n</think>\n\n{call}")
    assert done.tool_calls == (ToolCall("look", {"x": "1"}),)
    assert done.reasoning == f"I could write {call} but no.\n"


SAID = ["<|im_end|>", "</tool_response>", "<think>", "</think>", "🙂", "\r\n", " ", "a"]
texts = st.lists(st.sampled_from(SAID) | st.text(max_size=8), max_size=4).map("".join)


@pytest.mark.parametrize(
    "name", ["qwen2_5", "qwen3", "qwen3_8", "llama3_1", "glm4moe", "gptoss", "deepseekv3", "mistral"]
)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_whatever_is_said_the_next_prompt_begins_with_what_was_held_or_forks(name: str, data: Any) -> None:
    renderer = RENDERERS.setdefault(name, Renderer(tokenizer_of(name)))
    tracker = TokenTracker(renderer, TOOLS)
    conversation: tuple[Message, ...] = (system("s"), user(data.draw(texts)))
    held: tuple[int, ...] = ()
    for _ in range(3):
        step = tracker.advance(conversation)
        assert step.fork or step.prompt_ids[: len(held)] == held
        call = ToolCall("look", {"x": data.draw(texts)}, "callaaaa1")
        answer = data.draw(st.sampled_from([assistant(data.draw(texts)), assistant(None, call)]))
        text = renderer.dialect.render(answer)
        sampled = (*renderer.tokenizer.encode(text, add_special_tokens=False), min(renderer.eos_ids))
        tracker.record(sampled)
        held = step.prompt_ids + sampled
        new = tool_result(call, data.draw(texts)) if answer.tool_calls else user(data.draw(texts))
        conversation = (*conversation, answer, new)


RENDERERS: dict[str, Renderer] = {}


@pytest.mark.parametrize("name", ["qwen3", "glm4moe", "chatml"])
def test_tags_that_are_tokens_but_not_special_stay_text_in_what_others_say(name: str) -> None:
    renderer = Renderer(tokenizer_of(name))
    for tag, token in renderer.added_tokens.items():
        honest, attacked = (renderer.prompt_ids((user(text),)) for text in ("x y", f"x {tag} y"))
        assert honest.count(token) == attacked.count(token)
        assert tag in renderer.decode(attacked)


def test_a_template_that_refuses_a_conversation_is_named_with_its_roles() -> None:
    renderer = Renderer(published("gemma"))
    with pytest.raises(ConfigError, match=r"refuses this conversation \(system, user\): .*[Ss]ystem role"):
        renderer.prompt_ids((system("s"), user("q")))


def test_the_kit_finds_what_is_wrong() -> None:
    lossy = tokenizer_with(
        str(tiny_tokenizer("chatml_tools").chat_template).replace("{{ m['content'] }}\n</tool_r", "\n</tool_r")
    )
    failed = {verdict.check for verdict in check_renderer(Renderer(lossy)) if verdict.outcome == "fails"}
    assert failed == set()  # a template that drops results writes no calls either: they are written as text

    silent = tokenizer_with("{% for m in messages %}{{ m['content'] }}{% endfor %}", eos="<|end|>")
    failed = {verdict.check for verdict in check_renderer(Renderer(silent)) if verdict.outcome == "fails"}
    assert "turns end, cut ones too" in failed

    wrong = check_renderer(Renderer(published("qwen3"), "glm"))
    (fault,) = (v for v in wrong if v.check == "calls that the template writes are read back")
    assert fault.outcome == "fails"
    assert "was read as" in fault.detail and "expected look_up" in fault.detail


def test_a_family_that_is_unknown_here_is_parsed_as_its_tokenizer_says() -> None:
    tokenizer = published("lfm2_2_5")
    assert detect_dialect(tokenizer) is None
    tokenizer.response_template = {"defaults": {"role": "assistant"}, "fields": {"content": {}}}
    dialect = Renderer(tokenizer).dialect
    assert dialect.name == "response_template"
    assert dialect.parse("Hello.").role == "assistant"


@pytest.mark.parametrize("name", ["lfm2_2_5", "lfm2", "gemma4"])
def test_a_template_with_tools_in_an_unknown_form_is_refused_unless_a_dialect_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=r"tools in a form that no dialect here knows; .*hermes, qwen_xml"):
        Renderer(published(name))
    assert Renderer(published(name), "react").dialect.name == "react"


def test_a_template_without_tools_is_shown_hermes() -> None:
    assert Renderer(tiny_tokenizer("chatml")).dialect.name == "hermes"


def test_a_template_that_writes_out_the_schemas_of_tools_is_not_for_that_llamas() -> None:
    """The structure of Phi-4-mini's and of Granite's: `"parameters": ` is of a tool's schema, not of a call."""
    listed = (
        "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}"
        """{% if loop.first and tools %}<|tool|>[{% for t in tools %}{"name": "{{ t.function.name }}", """
        """"parameters": {{ t.function.parameters | tojson }}}{% endfor %}]<|/tool|>{% endif %}"""
        "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    with pytest.raises(ConfigError, match="tools in a form that no dialect here knows"):
        Renderer(tokenizer_with(listed))
