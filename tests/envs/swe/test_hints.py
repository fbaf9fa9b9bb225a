"""Prompts, notices and hints: files, each of which can be left out."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym import ToolCall
from skyrl_gym.envs.swe.env import SweEnv
from skyrl_gym.envs.swe.hints import HINTS
from skyrl_gym.errors import ConfigError
from skyrl_gym.messages import add_text, assistant, user

PROMPTS = Path(__file__).parents[3] / "envs" / "swe" / "prompts"


@pytest.fixture
def made() -> Iterator[Any]:
    opened: list[SweEnv] = []

    def make(**settings: Any) -> SweEnv:
        opened.append(SweEnv(**settings))
        opened[-1].reset(options={"task": 0})
        return opened[-1]

    yield make
    for env in opened:
        env.close()


def bash(env: SweEnv, command: str, **more: Any) -> str:
    return str(env.step(ToolCall("bash", {"command": command, **more}))[0][-1].content)


def edit(env: SweEnv, command: str, **arguments: Any) -> str:
    return str(env.step(ToolCall("edit", {"command": command, "path": "new.py", **arguments}))[0][-1].content)


def test_turns_are_named_when_few_are_left(made: Any) -> None:
    env = made(max_turns=5)
    seen = [bash(env, f"echo {n}") for n in range(4)]
    assert [text.splitlines()[0] for text in seen] == ["0", "1", "2", "3"]
    assert [text.splitlines()[-1][:16] for text in seen] == [
        "0",
        "[3 turns are lef",
        "[2 turns are lef",
        "[This is the las",
    ]


def test_tokens_are_named_when_few_are_left(made: Any) -> None:
    env = made(context_tokens=6_000)
    assert "tokens of context" not in bash(env, "echo a")
    assert "tokens of context are left" in bash(env, "head -c 9000 /dev/zero | tr '\\0' x")
    assert "[About 0 tokens" in bash(env, "head -c 15000 /dev/zero | tr '\\0' x; head -c 9000 /dev/zero | tr '\\0' y")


def test_what_failed_is_followed_by_what_to_do(made: Any) -> None:
    env = made()
    assert "no network" in bash(env, "nosuchprogram")
    assert "no network" not in bash(env, "false")
    assert "in the background" in bash(env, "sleep 9", timeout=1)
    edit(env, "create", file_text="x = 1\n")
    assert "[The edit of new.py was not made." in edit(env, "str_replace", old_str="y", new_str="z")
    assert "[new.py does not parse after this edit." in edit(env, "str_replace", old_str="1", new_str="(")
    assert "[" not in edit(env, "undo")


def test_the_same_call_three_times_in_a_row_is_named(made: Any) -> None:
    env = made()
    seen = ["in a row" in bash(env, command) for command in ("ls", "ls", "ls", "ls", "pwd", "ls")]
    assert seen == [False, False, True, True, False, False]


@pytest.mark.parametrize("left_out", HINTS)
def test_each_hint_can_be_left_out(made: Any, left_out: str) -> None:
    env = made(hints=[name for name in HINTS if name != left_out], context_tokens=2_000, max_turns=8)
    seen = [bash(env, "nosuchprogram") for _ in range(3)] + [edit(env, "str_replace", old_str="a", new_str="b")]
    edit(env, "create", file_text="x = (\n")
    seen += [edit(env, "str_replace", old_str="y", new_str="b")]
    said = "\n".join(seen)
    words = {
        "turns": "turns are left",
        "tokens": "tokens of context",
        "edits": "was not made",
        "commands": "no network",
        "repeats": "in a row",
    }
    assert {name for name, word in words.items() if word in said} == set(HINTS) - {left_out}


def test_without_hints_a_result_stays_as_it_is(made: Any) -> None:
    env = made(hints=[], max_turns=2)
    assert bash(env, "echo a") == "a"


def test_a_copy_of_an_episode_counts_for_itself(made: Any) -> None:
    env = made()
    bash(env, "ls")
    bash(env, "ls")
    twin = env.fork()
    try:
        assert "in a row" in bash(twin, "ls")
        assert "in a row" not in bash(env, "pwd")
    finally:
        twin.close()


def test_the_prompt_is_one_of_the_suites_or_a_file(made: Any, tmp_path: Path) -> None:
    assert "call submit" in str(made().conversation[0].content)
    assert "Work in this order" in str(made(prompt="workflow").conversation[0].content)
    (tmp_path / "mine.md").write_text("Repair $repository: $problem It costs $5.")
    text = str(made(prompt=str(tmp_path / "mine.md")).conversation[0].content)
    assert text.startswith("Repair /work: `") and text.endswith("It costs $5.")


def test_unknown_prompts_and_hints_are_refused() -> None:
    with pytest.raises(ConfigError, match="prompt is 'task', 'workflow' or a file; got 'x'"):
        SweEnv(prompt="x")
    for wrong in (["x"], "turns"):
        with pytest.raises(ConfigError, match="hints are a list with some of turns, tokens, edits"):
            SweEnv(hints=wrong)


def test_every_text_is_a_line_and_every_file_is_used() -> None:
    used = {"turns", "last_turn", "tokens", "edits", "syntax", "timeout", "unknown", "repeats"}
    assert {path.stem for path in (PROMPTS / "hints").iterdir()} == used
    assert all(path.read_text().count("\n") == 1 for path in (PROMPTS / "hints").iterdir())


def test_text_is_added_to_a_text_or_after_what_is_none() -> None:
    assert add_text((user("a"),), "b") == (user("a\n\nb"),)
    assert add_text((), "b") == (user("b"),)
    call = assistant(None, ToolCall("ls"))
    assert add_text((call,), "b") == (call, user("b"))
