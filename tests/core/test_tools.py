"""`@tool`: schemas, validation, execution."""

import asyncio
import time
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from skyrl_gym.errors import ConfigError, SandboxLost, ToolError
from skyrl_gym.messages import ToolCall, user
from skyrl_gym.tools import ContextEdit, Tool, ToolResult, cap_text, finish, run_calls, tool, tools_of


class Point(BaseModel):
    x: int
    title: str = "p"


@tool(effect="reads")
def search(query: str, top: Annotated[int, Field(ge=1, le=10)] = 5, mode: Literal["fast", "exact"] = "fast") -> str:
    """Searches the corpus.

    Args:
        query: what to look for,
            over two lines
        top: how many
    """
    return f"{query}/{top}/{mode}"


@tool
async def move(to: Point, note: str | None = None) -> str:
    """Moves."""
    return f"{to.x} {note}"


@tool
def stop() -> ToolResult:
    """Ends."""
    return finish("bye")


@tool(effect="context")
def forget() -> ContextEdit:
    """Replaces the conversation."""
    return ContextEdit((user("new"),))


TOOLS = {t.name: t for t in (search, move, stop, forget)}


def run(*calls: ToolCall, tools: dict[str, Tool] = TOOLS) -> list[Any]:
    return asyncio.run(run_calls(tools, calls))


def test_the_schema_comes_from_signature_and_docstring() -> None:
    assert search.spec.description == "Searches the corpus."
    properties = search.spec.parameters["properties"]
    assert properties["query"] == {"type": "string", "description": "what to look for, over two lines"}
    assert properties["top"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 10,
        "default": 5,
        "description": "how many",
    }
    assert properties["mode"]["enum"] == ["fast", "exact"]
    assert search.spec.parameters["required"] == ["query"]
    assert search.spec.signature() == "search(query: string, top: integer = 5, mode: 'fast' | 'exact' = 'fast')"


def test_a_property_named_title_survives_the_removal_of_generated_titles() -> None:
    assert "title" in move.spec.parameters["$defs"]["Point"]["properties"]


def test_arguments_are_validated_and_converted() -> None:
    assert run(ToolCall("move", {"to": {"x": 3}}))[0].content == "3 None"
    assert run(ToolCall("search", {"query": "q", "top": 2}))[0].content == "q/2/fast"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (ToolCall("serch", {}), "Did you mean search?"),
        (ToolCall("search", {"query": "q", "top": 0}), "greater than or equal to 1"),
        (ToolCall("search", {}), "query: Field required"),
        (ToolCall("search", {"query": "q", "colour": 1}), "colour: Extra inputs"),
        (ToolCall("search", "{broken"), "not a JSON object"),
    ],
)
def test_unusable_calls_are_answered_with_what_is_valid(call: ToolCall, says: str) -> None:
    result = run(call)[0]
    assert result.invalid
    assert says in result.content
    assert "search(query: string" in result.content


def test_a_miss_is_never_empty_text() -> None:
    @tool
    def nothing() -> None:
        """Gives nothing."""

    assert run(ToolCall("nothing"), tools={"nothing": nothing})[0].content == "nothing gave no output."


def test_calls_after_an_end_or_a_context_edit_are_answered_not_executed() -> None:
    results = run(ToolCall("stop"), ToolCall("search", {"query": "q"}), ToolCall("stop"))
    assert results[0].ends_episode
    assert [r.content.startswith("Not executed") for r in results[1:]] == [True, True]
    edit, rest = run(ToolCall("forget"), ToolCall("stop"))
    assert isinstance(edit, ContextEdit)
    assert not rest.ends_episode


def test_reads_run_side_by_side_and_a_blocking_tool_never_blocks_the_loop() -> None:
    @tool(effect="reads")
    def wait() -> str:
        """Blocks its thread."""
        time.sleep(0.2)
        return "ok"

    async def measure() -> tuple[float, float]:
        lag, ticking = 0.0, True

        async def tick() -> None:
            nonlocal lag
            while ticking:
                started = time.perf_counter()
                await asyncio.sleep(0.005)
                lag = max(lag, time.perf_counter() - started)

        ticker = asyncio.create_task(tick())
        started = time.perf_counter()
        await run_calls({"wait": wait}, [ToolCall("wait")] * 32)
        ticking = False
        await ticker
        return time.perf_counter() - started, lag

    took, lag = asyncio.run(measure())
    assert took < 3  # one after another they take 6.4 s
    assert lag < 1


def test_a_tool_past_its_deadline_is_stopped_and_says_so() -> None:
    @tool(timeout_s=0.05)
    async def slow() -> str:
        """Sleeps."""
        await asyncio.sleep(5)
        return "late"

    @tool
    async def own() -> str:
        """Raises a TimeoutError of its own."""
        raise TimeoutError("mine")

    assert run(ToolCall("slow"), tools={"slow": slow})[0].content == "slow was stopped after 0.05 s."
    assert "raised TimeoutError: mine" in run(ToolCall("own"), tools={"own": own})[0].content


def test_tool_errors_go_to_the_agent_and_others_up() -> None:
    @tool
    def fails(how: Literal["tool", "infra", "bug"]) -> str:
        """Fails."""
        raise {"tool": ToolError("no such city"), "infra": SandboxLost("gone"), "bug": KeyError("bug")}[how]

    result = run(ToolCall("fails", {"how": "tool"}), tools={"fails": fails})[0]
    assert (result.content, result.is_error, result.invalid) == ("no such city", True, False)
    with pytest.raises(SandboxLost):
        run(ToolCall("fails", {"how": "infra"}), tools={"fails": fails})
    with pytest.raises(KeyError):
        run(ToolCall("fails", {"how": "bug"}), tools={"fails": fails})


def test_long_output_is_cut_with_the_cut_shown() -> None:
    assert cap_text("é" * 10, 20) == "é" * 10
    cut = cap_text("a" * 1_000 + "z" * 1_000, 100)
    assert cut.startswith("a" * 50)
    assert cut.endswith("z" * 50)
    assert "[... 1900 bytes left out ...]" in cut


def test_methods_are_bound_and_found_in_order_of_definition() -> None:
    class Base:
        @tool
        def first(self) -> str:
            """One."""
            return "base"

        @tool
        def second(self) -> str:
            """Two."""
            return "2"

    class Derived(Base):
        first = None  # type: ignore[assignment]

        @tool
        def third(self) -> str:
            """Three."""
            return type(self).__name__

    assert [t.name for t in tools_of(Base())] == ["first", "second"]
    assert [t.name for t in tools_of(Derived())] == ["second", "third"]
    assert run(ToolCall("third"), tools={t.name: t for t in tools_of(Derived())})[0].content == "Derived"


def test_a_tool_without_annotation_or_docstring_is_refused_when_it_is_made() -> None:
    with pytest.raises(ConfigError, match="type annotation"):

        @tool
        def untyped(x) -> str:  # type: ignore[no-untyped-def]
            """Text."""
            return ""

    with pytest.raises(ConfigError, match="docstring"):

        @tool
        def silent() -> str:
            return ""
