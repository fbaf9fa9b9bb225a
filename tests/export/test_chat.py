"""Conversations: what was said, in the words of each format."""

import json
from typing import Any

from skyrl_gym import ToolCall, assistant, user
from skyrl_gym.export import Selection, sft_rows, sharegpt_rows
from skyrl_gym.messages import from_openai, system, tool_result
from skyrl_gym.rollout import Turn
from skyrl_gym.tools import ToolSpec

LOOK = ToolSpec("look", "Looks.", {"type": "object", "properties": {"at": {"type": "string"}}})
CALLS = (ToolCall("look", {"at": "sky"}, "a"), ToolCall("look", {"at": "sea"}, "b"))


def conversation(make: Any) -> Any:
    turns = (
        Turn(assistant("Both.", *CALLS), tuple(tool_result(call, f"the {call.arguments['at']}") for call in CALLS)),
        Turn(assistant("Blue.")),
    )
    return make.drawn(0, opening=(system("You look."), user("What colour?")), turns=turns, reward=1.0)


def test_messages_are_openai_messages_with_objects_for_arguments(make: Any) -> None:
    (row,) = sft_rows(Selection([conversation(make)]), [LOOK])
    assert row["messages"][2]["tool_calls"][0]["function"] == {"name": "look", "arguments": {"at": "sky"}}
    assert row["tools"] == [LOOK.to_openai()]
    back = [from_openai(message) for message in row["messages"]]
    assert back == list(next(conversation(make).conversations()))
    assert row["reward"] == 1.0


def test_sharegpt_speakers_alternate_and_calls_are_text(make: Any) -> None:
    (row,) = sharegpt_rows(Selection([conversation(make)]), [LOOK])
    assert [turn["from"] for turn in row["conversations"]] == ["system", "human", "gpt", "tool", "gpt"]
    assert row["conversations"][2]["value"].count("<tool_call>") == 2
    assert row["conversations"][3]["value"].count("<tool_response>") == 2
    assert json.loads(row["tools"]) == [LOOK.to_openai()]


def test_a_replaced_context_gives_a_row_of_its_own_and_ends_with_an_answer(make: Any) -> None:
    note = Turn(assistant("I note it.", ToolCall("note")), (user("You noted: blue."),), context_edit=True)
    after = Turn(assistant("Blue."), (user("Thanks."),))
    rows = list(sft_rows(Selection([make.drawn(0, turns=(note, after))])))
    assert [[m["content"] for m in row["messages"]][-2:] for row in rows] == [
        ["What is there?", "I note it."],
        ["You noted: blue.", "Blue."],
    ]


def test_arguments_that_are_no_object_stay_as_they_were_written(make: Any) -> None:
    turns = (Turn(assistant(None, ToolCall("look", '{"at": ', "a"))),)
    (row,) = sft_rows(Selection([make.drawn(0, turns=turns)]))
    assert row["messages"][-1]["tool_calls"][0]["function"]["arguments"] == '{"at": '


def test_an_episode_without_an_answer_gives_no_row(make: Any) -> None:
    assert list(sft_rows(Selection([make.drawn(0, turns=())]))) == []
