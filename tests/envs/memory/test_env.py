"""An episode: what the agent sees, what its calls do, how it ends."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyrl_gym.env import TextEnv
from skyrl_gym.envs.memory.env import MemoryEnv
from skyrl_gym.envs.memory.reading import CHARACTERS_PER_WORD
from skyrl_gym.envs.memory.tasks import read_problem
from skyrl_gym.errors import ConfigError, StopReason
from skyrl_gym.messages import assistant
from skyrl_gym.registration import make_env


def test_each_section_is_a_conversation_of_its_own(env: TextEnv, note: Any) -> None:
    first = env.conversation
    second, *_ = env.step(note("read: one"))
    third, *_ = env.step(note("read: two"))
    last, *_ = env.step(note("read: all"))
    assert [len(c) for c in (first, second, third, last)] == [2, 2, 2, 2]
    assert "Section 1/3: One two.\nMemory: (empty)\nQuestion: What?" in first[1].text
    assert "Section 2/3: Three four five.\nMemory: read: one\n" in second[1].text
    assert "Section 3/3: Six.\nMemory: read: two\n" in third[1].text
    assert last[1].text == "Memory: read: all\nQuestion: What?\nCall answer."


def test_an_answer_ends_the_episode_and_is_scored(env: TextEnv, note: Any, reply: Any) -> None:
    for _ in range(3):
        env.step(note("two"))
    _, reward, terminated, truncated, info = env.step(reply("Two."))
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["metrics"] == {"exact_match": 1.0, "f1": 1.0, "recall": 1.0, "sections_read": 1.0}


def test_a_number_stands_for_its_text(env: TextEnv, note: Any, reply: Any) -> None:
    seen, _, _, _, info = env.step(note(4821))
    assert "Memory: 4821\n" in seen[1].text
    assert not info["invalid"]
    *_, info = env.step(reply(["two"]))
    assert info["invalid"]


def test_an_answer_may_come_before_all_is_read(env: TextEnv, note: Any, reply: Any) -> None:
    env.step(note(""))
    _, reward, terminated, _, info = env.step(reply("two"))
    assert (reward, terminated) == (1.0, True)
    assert info["metrics"]["sections_read"] == pytest.approx(1 / 3)


def test_a_memory_that_was_cut_says_so(env: TextEnv, note: Any) -> None:
    seen, *_ = env.step(note("one two three four five six"))
    assert "Memory: one two three four five [cut here: it was longer than 5 words]\n" in seen[1].text
    seen, *_ = env.step(note("one two three four five"))
    assert "Memory: one two three four five\n" in seen[1].text


def test_reading_on_after_the_end_is_answered_with_what_to_do(env: TextEnv, note: Any) -> None:
    for _ in range(3):
        env.step(note("two"))
    seen, _, terminated, truncated, info = env.step(note("again"))
    assert seen[-1].text == "The whole text has been read. Call answer."
    assert info["invalid"]
    assert not terminated
    assert not truncated
    assert "Memory: two\n" in seen[1].text


def test_text_that_looks_like_a_template_is_shown_as_it_is(note: Any) -> None:
    env = MemoryEnv()
    env.reset(options={"task": {"document": "$memory {x} %s", "question": "$section?", "answers": ["x"]}})
    seen, *_ = env.step(note("$question"))
    assert seen[1].text.startswith("Memory: $question\nQuestion: $section?")
    env.close()


def test_the_turn_limit_follows_the_length_of_the_document(env: TextEnv, note: Any) -> None:
    assert env.max_turns == 3 + 1 + env.max_invalid
    assert MemoryEnv(document_words=1_000, chunk_words=300).max_turns == 4 + 1 + 3
    fixed = MemoryEnv(chunk_words=3, max_turns=2)
    fixed.reset(options={"task": env.task})
    fixed.step(note(""))
    *_, truncated, info = fixed.step(note(""))
    assert truncated
    assert info["stop_reason"] == StopReason.MAX_TURNS.value
    fixed.close()


def test_a_worked_example_is_a_finished_turn_of_another_problem() -> None:
    plain, shown = MemoryEnv(document_words=30), MemoryEnv(document_words=30, worked_example=True)
    before, _ = plain.reset(seed=1)
    after, _ = shown.reset(seed=1)
    assert [m.role for m in after] == ["system", "user", "assistant", "user"]
    assert (after[0], after[3]) == before
    example = shown._as_message(after[2].text)  # what a policy would have had to write
    assert example.tool_calls[0].name == "update_memory"
    plain.close()
    shown.close()


def test_the_prompt_apart_from_the_section_is_short() -> None:
    for example, limit in ((False, 45), (True, 80)):
        env = MemoryEnv(document_words=30, worked_example=example)
        seen, _ = env.reset(seed=1)
        section = read_problem(env.task).document
        words = sum(len(message.text.split()) for message in seen) - len(section.split())
        assert words < limit, words
        env.close()


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"families": ["niah_singel"]}, "did you mean 'niah_single'"),
        ({"families": []}, "families names at least one of niah_single, "),
        ({"values": ["colour"]}, "values has no 'colour'"),
        ({"hops": [5]}, r"hops has no 5.*known: 1, 2, 3, 4"),
        ({"chunk_words": 0}, "chunk_words is at least 1; got 0"),
        ({"task_count": 0}, "task_count is at least 1; got 0"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_with_what_does(setting: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make_env("skyrl/memory-v0", **setting)


def test_settings_survive_the_json_of_the_spec() -> None:
    import gymnasium as gym

    env = gym.make("skyrl/memory-v0", families=["khop"], hops=[2], document_words=300, values=["uuid"], task_count=7)
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))  # type: ignore[union-attr]
    first, second = env.unwrapped, again.unwrapped
    assert isinstance(first, MemoryEnv)
    assert isinstance(second, MemoryEnv)
    assert [task.hash for task in first.tasks] == [task.hash for task in second.tasks]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), index=st.integers(0, 50), text=st.text(max_size=400))
def test_whatever_is_written_the_memory_stays_within_its_bound(
    data: Any, index: int, text: str, settings_of_envs: Any, note: Any
) -> None:
    env = MemoryEnv(**data.draw(settings_of_envs))

    async def play() -> None:
        await env.areset(options={"task": index})
        while env.stop_reason is None and env._read < len(env._sections):
            await env.aturn(note(text + " x" * 100))
            shown = env.conversation[-1].text.split("Memory: ")[-1].split(" [cut here")[0]
            assert len(env._memory.split()) <= env.memory_words
            assert len(env._memory) <= env.memory_words * CHARACTERS_PER_WORD
            assert shown.startswith((env._memory or "(empty)").split("Memory: ")[-1][:20])
        await env.aclose()

    asyncio.run(play())


@settings(max_examples=80, deadline=None)
@given(data=st.data(), index=st.integers(0, 10_000))
def test_the_expert_earns_1_doing_nothing_0_and_cheating_next_to_nothing(
    data: Any, index: int, settings_of_envs: Any, player: Any
) -> None:
    env = MemoryEnv(**data.draw(settings_of_envs), task_count=10_001)
    task, play = env.tasks[index], player(env).play
    assert play(task, [assistant("I do not know.")] * env.max_invalid)[0] == 0.0
    probes = asyncio.run(env.aprobes(task))
    assert {"gold", "gold after reading", "nothing", "every word"} <= set(probes)
    for name, probe in probes.items():
        assert probe.allows(play(task, probe.actions)[0]), name
    env.close()


def test_rows_of_your_own_are_read_from_jsonl(tmp_path: Any, reply: Any) -> None:
    rows = [
        {"id": "one", "document": "It is red.", "question": "Which colour?", "answers": ["red", "crimson"]},
        {"id": "set", "document": "Ann and Bob.", "question": "Who?", "answers": [["Ann"], ["Bob", "Robert"]]},
    ]
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    env = make_env("skyrl/memory-v0", tasks=str(file))
    for task, text in (("one", "crimson"), ("set", "Robert, Ann")):
        env.reset(options={"task": task})
        assert env.step(reply(text))[1] == 1.0
    env.close()
