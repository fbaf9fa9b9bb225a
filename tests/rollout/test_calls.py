"""Calls as models write them, well and badly, through whole episodes."""

import asyncio
import json
import random
from collections.abc import Iterable
from typing import Any

import pytest

from skyrl_gym import Task, TaskSet, TextEnv, ToolCall, finish, tool
from skyrl_gym.chat import Renderer, dialect_names, get_dialect
from skyrl_gym.chat.testing import tiny_tokenizer
from skyrl_gym.errors import StopReason
from skyrl_gym.messages import Message, assistant
from skyrl_gym.policy import Completion, Prompt, Sampling, ScriptedPolicy
from skyrl_gym.rollout import RolloutLimits, RolloutRequest, Runner, Trajectory
from skyrl_gym.trainer.outcomes import Outcome

LOOK = ToolCall("look", {"place": "a", "deep": 2})


class Room(TextEnv):
    """Look around; `done` ends it."""

    def load_tasks(self, split: str) -> TaskSet:
        return TaskSet.from_rows([{"id": "t"}])

    def setup(self, task: Task) -> str:
        return "Look around."

    @tool
    def look(self, place: str, deep: int = 1) -> str:
        """Looks."""
        return f"{place} is empty"

    @tool
    def done(self) -> Any:
        """Ends."""
        return finish()

    def grade(self) -> float:
        return 1.0


def play(policy: Any, samples: int = 1, **settings: Any) -> list[Trajectory]:
    task = Task("t", {})
    runner = Runner(policy, make=lambda env_id, **_: Room(**settings), limits=RolloutLimits(retries=0))

    async def collect() -> list[Trajectory]:
        requests = [RolloutRequest("room", task, "t", sample) for sample in range(samples)]
        return [trajectory async for trajectory in runner.run(requests)]

    return asyncio.run(collect())


def damaged(text: str, rng: random.Random) -> str:
    """A call with a mistake of structure: cut, a piece lost, twice or replaced."""
    start = rng.randrange(len(text))
    end = min(len(text), start + rng.randint(1, 8))
    noise = "".join(rng.choice('{}[]<>"\\:,|\n\x00é🙂\u2028') for _ in range(rng.randint(1, 4)))
    return rng.choice(
        [text[: max(1, start)], text[:start] + text[end:], text[:end] + text[start:], text[:start] + noise + text[end:]]
    )


def malformed(dialect: str, count: int) -> list[str]:
    """So many distinct texts of which nothing can be carried out."""
    rng = random.Random(dialect)
    whole = get_dialect(dialect).render(assistant(None, LOOK))
    specs = Room().tool_specs
    found: dict[str, None] = {}
    while len(found) < count:
        text = damaged(whole, rng)
        calls = get_dialect(dialect).parse(text, specs).tool_calls
        if not any(call.well_formed and call.name in ("look", "done") for call in calls):
            found[text] = None
    return list(found)


@pytest.mark.parametrize("dialect", dialect_names())
def test_two_hundred_malformed_calls_are_each_answered_with_the_mistake_and_the_episode_goes_on(dialect: str) -> None:
    texts = malformed(dialect, 200)
    last = get_dialect(dialect).render(assistant(None, ToolCall("done", {})))
    answers = iter([*texts, last])
    policy = ScriptedPolicy(lambda prompt: next(answers))
    (found,) = play(policy, dialect=dialect, max_turns=1_000, max_invalid=1_000, max_repeats=1_000)
    assert (found.stop_reason, found.reward, len(found.turns)) == (StopReason.DONE, 1.0, 201)
    for turn in found.turns[:-1]:
        assert turn.invalid
        assert turn.observations and all(message.text.strip() for message in turn.observations)
        assert len(turn.observations) == max(1, len(turn.message.tool_calls))


class Saying(ScriptedPolicy):
    """Always the same text, with the same reason to stop there."""

    def __init__(self, text: str, finish_reason: Any) -> None:
        super().__init__([], renderer=Renderer(tiny_tokenizer()))
        self.text, self.finish_reason = text, finish_reason

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        assert self.renderer is not None
        ids = tuple(self.renderer.tokenizer.encode(self.text, add_special_tokens=False))
        return Completion(self.text, token_ids=ids, finish_reason=self.finish_reason)


@pytest.mark.parametrize("text", ['<tool_call>{"name": "look", "a', '<tool_call>{"name": "done"}}</tool_call>', "hm"])
def test_a_call_that_the_limit_of_tokens_cut_is_told_apart_from_one_that_was_written_wrong(text: str) -> None:
    (cut,), (wrong,) = (play(Saying(text, reason), max_invalid=2) for reason in ("length", "stop"))
    assert (cut.stop_reason, len(cut.turns)) == (StopReason.LENGTH, 1)
    assert cut.turns[0].observations == () and not cut.turns[0].invalid
    assert (wrong.stop_reason, len(wrong.turns)) == (StopReason.INVALID_CALLS, 2)
    assert all(turn.observations and turn.invalid for turn in wrong.turns)
    masked = frozenset({StopReason.LENGTH})
    assert [Outcome.of(found, None, masked).trained for found in (cut, wrong)] == [False, True]


@pytest.mark.parametrize("kind", ["chatml", "chatml_tools"])
def test_side_by_side_each_episode_has_exactly_its_own_messages(kind: Any) -> None:
    """Four samples of one task, two calls in each of three turns: no answer comes twice, none is another's."""
    prompts: dict[str, list[tuple[Message, ...]]] = {}
    turns = iter(range(100))

    class Looking(ScriptedPolicy):
        async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
            assert prompt.session is not None
            prompts.setdefault(prompt.session, []).append(prompt.messages)
            await asyncio.sleep(0)  # the others have their turn in between
            return await super().complete(prompt, sampling)

    def answer(prompt: Prompt) -> Message:
        if len(prompt.messages) == 1 + 3 * 3:
            return assistant(None, ToolCall("done"))
        turn = next(turns)
        return assistant(None, *(ToolCall("look", {"place": f"{turn:02}{side}"}) for side in "ab"))

    policy = Looking(answer, renderer=Renderer(tiny_tokenizer(kind)))
    found = play(policy, samples=4)
    assert len(found) == len(prompts) == 4
    for asked in prompts.values():
        assert [len(messages) for messages in asked] == [1, 4, 7, 10]
        assert [message.role for message in asked[-1]] == ["user", *["assistant", "tool", "tool"] * 3]
    for trajectory in found:
        *looked, _ = trajectory.turns
        for turn in looked:
            places = [json.loads(call.arguments_json())["place"] for call in turn.message.tool_calls]
            assert [message.text for message in turn.observations] == [f"{place} is empty" for place in places]
        said = policy.renderer.decode(ids_of(trajectory))  # type: ignore[union-attr]
        assert [said.count(place) for place in places_of(trajectory)] == [2] * 6, "once called, once answered"


def ids_of(trajectory: Trajectory) -> tuple[int, ...]:
    steps = [turn.transition for turn in trajectory.turns if turn.transition]
    assert [step.fork for step in steps] == [True, False, False, False]
    return tuple(i for step in steps for i in (*step.input_ids, *step.sampled_ids))


def places_of(trajectory: Trajectory) -> Iterable[str]:
    calls = [call for turn in trajectory.turns for call in turn.message.tool_calls if call.name == "look"]
    return [json.loads(call.arguments_json())["place"] for call in calls]
