"""ToolSpace and ConversationSpace."""

import json
import pickle
import subprocess
import sys
from typing import Annotated, Literal

from gymnasium.utils.env_checker import data_equivalence
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from skyrl_gym.messages import ToolCall, user
from skyrl_gym.spaces import ConversationSpace, ToolSpace
from skyrl_gym.tools import tool


class Range(BaseModel):
    start: int = 0
    end: Annotated[int, Field(gt=0, lt=9)]


@tool
def everything(
    text: Annotated[str, Field(min_length=2, max_length=5)],
    code: Annotated[str, Field(pattern=r"^[a-c]{2}-\d{3}$")],
    count: Annotated[int, Field(ge=3, le=30, multiple_of=3)],
    ratio: Annotated[float, Field(gt=0, lt=1)],
    window: Range,
    kind: Literal["a", "b"],
    names: Annotated[list[str], Field(min_length=1, max_length=2)],
    table: dict[str, bool],
    maybe: int | None = None,
    flag: bool = False,
) -> str:
    """Has a parameter of every kind."""
    return ""


@tool
def simple(x: int) -> str:
    """Has one."""
    return ""


SPACE = ToolSpace([everything.spec, simple.spec])


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**31))
def test_samples_are_valid_for_the_space_and_for_the_tool(seed: int) -> None:
    space = ToolSpace([everything.spec, simple.spec], seed=seed)
    call = space.sample()
    assert call in space
    {"everything": everything, "simple": simple}[call.name].parse(call.arguments)
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable([call])))) == [call]


def test_what_is_no_valid_call_is_not_contained() -> None:
    assert ToolCall("simple", {"x": 1}) in SPACE
    for bad in (
        ToolCall("simple", {}),
        ToolCall("simple", {"x": "1"}),
        ToolCall("none", {}),
        ToolCall("simple", "{"),
        "text",
    ):
        assert bad not in SPACE


def test_equality_pickle_and_json_keep_the_space() -> None:
    assert pickle.loads(pickle.dumps(SPACE)) == SPACE
    assert ToolSpace.from_json(SPACE.to_json()) == SPACE
    assert ToolSpace([simple.spec]) != SPACE
    assert ConversationSpace() == pickle.loads(pickle.dumps(ConversationSpace()))


def test_a_seed_gives_the_same_samples_in_a_process_with_another_hash_seed() -> None:
    program = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); from skyrl_gym.spaces import ToolSpace;"
        "space = ToolSpace.from_json(sys.stdin.read()); space.seed(7);"
        "print(json.dumps(space.to_jsonable([space.sample() for _ in range(20)])))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program, "."],
            input=SPACE.to_json(),
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    space = ToolSpace([everything.spec, simple.spec], seed=7)
    assert outputs == {json.dumps(space.to_jsonable([space.sample() for _ in range(20)])) + "\n"}


def test_conversations() -> None:
    space = ConversationSpace(seed=1)
    sample = space.sample()
    assert sample in space
    assert [user("x")] not in space
    assert data_equivalence(space.from_jsonable(space.to_jsonable([sample])), [sample])
