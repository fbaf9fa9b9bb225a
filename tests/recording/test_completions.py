"""Recorded completions: the same prompt and seed, the same answer, token for token."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyrl_gym import ToolCall, assistant, user
from skyrl_gym.errors import ConfigError, PolicyError
from skyrl_gym.policy import CachedPolicy, Completion, Prompt, Sampling
from skyrl_gym.policy.cached import _decode, _encode
from skyrl_gym.tools import ToolSpec

PROMPT = Prompt((user("Hello."),), (ToolSpec("look", "Looks.", {"type": "object"}),), (1, 2, 3))


class Counting:
    """Gives each call another answer."""

    name = "model"
    renderer = None

    def __init__(self) -> None:
        self.asked = 0
        self.closed = False

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        self.asked += 1
        return Completion(f"answer {self.asked}", token_ids=(self.asked,), logprobs=None)

    async def aclose(self) -> None:
        self.closed = True


def ask(policy: Any, prompt: Prompt = PROMPT, **sampling: Any) -> Completion:
    return asyncio.run(policy.complete(prompt, Sampling(**{"seed": 0, **sampling})))


def test_everything_that_the_answer_depends_on_is_in_the_question(tmp_path: Path) -> None:
    policy = CachedPolicy(Counting(), f"replay-or-record:{tmp_path}")
    first = ask(policy)
    assert ask(policy) == first
    others = [
        ask(policy, seed=1),
        ask(policy, max_tokens=7),
        ask(policy, replace(PROMPT, token_ids=(1, 2))),
        ask(policy, replace(PROMPT, token_ids=None)),
        ask(policy, replace(PROMPT, token_ids=None, tools=())),
        ask(policy, replace(PROMPT, token_ids=None, messages=(user("Hello?"),))),
    ]
    assert len({answer.text for answer in [first, *others]}) == 7
    assert (policy.recording.hits, policy.recording.misses) == (1, 7)


def test_a_replay_never_asks_the_policy(tmp_path: Path) -> None:
    first = ask(CachedPolicy(Counting(), f"record:{tmp_path}"))
    model = Counting()
    replay = CachedPolicy(model, f"replay:{tmp_path}")
    assert ask(replay) == first
    with pytest.raises(PolicyError, match="no recorded completion of model"):
        ask(replay, seed=5)
    assert model.asked == 0
    asyncio.run(replay.aclose())
    assert model.closed


def test_without_a_seed_there_is_nothing_to_tell_answers_apart_by(tmp_path: Path) -> None:
    policy = CachedPolicy(Counting(), f"record:{tmp_path}")
    with pytest.raises(ConfigError, match="need a seed, or temperature 0"):
        ask(policy, seed=None)
    assert ask(policy, seed=None, temperature=0.0).text == "answer 1"


completions = st.builds(
    Completion,
    st.text(),
    st.sampled_from(["stop", "length"]),
    st.none() | st.lists(st.integers(0, 2**17)).map(tuple),
    st.none() | st.lists(st.floats(max_value=0.0, allow_nan=False, allow_infinity=False)).map(tuple),
    st.integers(0, 9),
    st.none() | st.builds(lambda said, at: assistant(said, ToolCall("look", {"at": at}, "c")), st.text(), st.text()),
    st.none() | st.lists(st.integers(0, 9)).map(tuple),
)


@settings(deadline=None)
@given(completions)
def test_a_completion_comes_back_as_it_was(completion: Completion) -> None:
    import json

    assert _decode(json.loads(json.dumps(_encode(completion)))) == completion
