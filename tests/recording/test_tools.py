"""Recorded tools: the same again without the world, and never something that was not recorded there."""

import asyncio
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skyrl_gym import Task, TaskSet, TextEnv, ToolCall, ToolResult, finish, tool
from skyrl_gym.errors import ConfigError, EnvError, StopReason, ToolError
from skyrl_gym.messages import ImagePart, TextPart, user
from skyrl_gym.policy import CachedPolicy, Sampling, ScriptedPolicy
from skyrl_gym.recording import Recording, RecordTools
from skyrl_gym.rollout import RolloutLimits, Runner, Trajectory, requests_for
from skyrl_gym.tools import ContextEdit


class World:
    """Answers every question once, and differently each time; can be switched off."""

    def __init__(self) -> None:
        self.asked = 0
        self.off = False

    def ask(self, what: str) -> str:
        if self.off:
            raise AssertionError("the world was asked")
        self.asked += 1
        return f"{what}: answer {self.asked}"


WORLD = World()


class SearchEnv(TextEnv):
    """Searches, writes notes that change what is found, and answers."""

    def load_tasks(self, split: str) -> TaskSet:
        return TaskSet.from_rows([{"id": f"t{i}", "n": i} for i in range(3)])

    def setup(self, task: Task) -> str:
        return f"Find {task.id}."

    @tool(effect="reads")
    def search(self, query: str) -> Any:
        """Searches."""
        match query:
            case "fail":
                WORLD.ask(query)
                raise ToolError("the index is down \u2028")
            case "picture":
                return ToolResult((TextPart(WORLD.ask(query)), ImagePart("data:image/png;base64,AAAA")), reward=0.25)
            case "reset":
                return ContextEdit((user(WORLD.ask(query)),), reward=0.5)
        return WORLD.ask(query)

    @tool(effect="reads", timeout_s=0.05)
    async def slow(self) -> str:
        """Takes too long."""
        WORLD.ask("slow")
        await asyncio.sleep(5)
        return "never"

    @tool
    def note(self, text: str) -> str:
        """Writes."""
        return WORLD.ask(f"note {text}") if WORLD.asked < 0 else f"noted {text}"

    @tool
    def answer(self, text: str) -> ToolResult:
        """Ends."""
        return finish(text)

    def grade(self) -> float:
        return 1.0


@pytest.fixture(autouse=True)
def _fresh_world() -> Iterator[None]:
    WORLD.asked, WORLD.off = 0, False
    yield


def play(env: Any, *calls: ToolCall, task: int = 0) -> list[Any]:
    """The messages after each call."""
    env.reset(options={"task": task})
    seen = [env.step(call)[0] for call in calls]
    env.close()
    return seen


def search(query: str) -> ToolCall:
    return ToolCall("search", {"query": query}, "c")


KINDS = [
    search("stars"),
    search("fail"),
    search("picture"),
    ToolCall("slow", {}, "c"),
    search("stars"),
    search("reset"),
]


def test_a_replay_gives_the_same_without_asking(tmp_path: Path) -> None:
    first = play(SearchEnv(recording=f"record:{tmp_path}"), *KINDS)
    asked = WORLD.asked
    assert asked == len(KINDS)
    WORLD.off = True
    assert play(SearchEnv(recording=f"replay:{tmp_path}"), *KINDS) == first
    assert "was stopped after 0.05 s" in first[3][-1].text
    assert first[0][-1].text != first[4][-1].text  # asked again, the world answered otherwise, and so does the replay
    assert WORLD.asked == asked


def test_what_was_not_recorded_is_an_error_of_the_machinery_not_of_the_agent(tmp_path: Path) -> None:
    play(SearchEnv(recording=f"record:{tmp_path}"), search("stars"))
    env = SearchEnv(recording=f"replay:{tmp_path}")
    with pytest.raises(EnvError, match=r"no recorded answer to search\(\{'query': 'moons'\}\)"):
        play(env, search("moons"))
    with pytest.raises(EnvError):
        play(env, search("stars"), task=1)  # recorded for another task
    with pytest.raises(EnvError):
        play(env, ToolCall("note", {"text": "x"}), search("stars"))  # after something was written
    env.close()


def test_replay_or_record_asks_only_for_what_is_missing(tmp_path: Path) -> None:
    recording = Recording(tmp_path, "replay-or-record")
    first = play(SearchEnv(recording=recording), search("stars"))
    second = play(SearchEnv(recording=recording), search("stars"), search("moons"))
    assert second[0] == first[0]
    assert (recording.hits, recording.misses, WORLD.asked) == (1, 2, 2)
    assert len(recording.store) == 2


def test_results_can_be_shared_between_tasks(tmp_path: Path) -> None:
    recording = Recording(tmp_path, shared=True)
    seen = [play(SearchEnv(recording=recording), search("stars"), task=task)[0][-1] for task in (0, 1)]
    assert seen[0] == seen[1] and WORLD.asked == 1


def test_only_the_named_tools_are_recorded(tmp_path: Path) -> None:
    recording = Recording(tmp_path, tools=["note"])
    play(SearchEnv(recording=recording), ToolCall("note", {"text": "x"}), search("stars"))
    play(SearchEnv(recording=recording), ToolCall("note", {"text": "x"}), search("stars"))
    assert (recording.hits, recording.misses, WORLD.asked) == (1, 1, 2)


def test_record_replaces_what_an_earlier_process_wrote(tmp_path: Path) -> None:
    old = play(SearchEnv(recording=f"record:{tmp_path}"), search("stars"))
    for file in tmp_path.glob("*/*.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"by": "another process"}))
    new = play(SearchEnv(recording=f"record:{tmp_path}"), search("stars"))
    again = play(SearchEnv(recording=f"record:{tmp_path}"), search("stars"))
    assert old != new and new == again
    assert play(SearchEnv(recording=f"replay:{tmp_path}"), search("stars")) == new


def test_the_first_of_two_that_ask_at_once_wins(tmp_path: Path) -> None:
    async def at_once() -> list[Any]:
        recording = Recording(tmp_path)

        async def ask(number: int) -> int:
            await asyncio.sleep(0.01 * number)
            return number

        one, two = (recording.answer("q", "", lambda n=n: ask(n)) for n in (1, 2))
        return [await answer for answer in (asyncio.ensure_future(one), asyncio.ensure_future(two))]

    assert asyncio.run(at_once()) == [1, 1]


def test_it_is_a_gymnasium_wrapper_too(tmp_path: Path) -> None:
    env = RecordTools(SearchEnv(), f"record:{tmp_path}")
    assert isinstance(env, gym.Wrapper) and env.action_space == env.unwrapped.action_space
    first = play(env, *KINDS)
    WORLD.off = True
    assert play(RecordTools(SearchEnv(), f"replay:{tmp_path}"), *KINDS) == first
    with pytest.raises(ConfigError, match="has a recording already"):
        RecordTools(SearchEnv(recording=f"replay:{tmp_path}"), f"replay:{tmp_path}")
    with pytest.raises(ConfigError, match="wraps environments of this package"):
        RecordTools(gym.make("CartPole-v1"), f"replay:{tmp_path}")


def test_an_environment_keeps_its_recording_through_pickle(tmp_path: Path) -> None:
    first = play(SearchEnv(recording=f"record:{tmp_path}"), search("stars"))
    copy = pickle.loads(pickle.dumps(SearchEnv(recording=f"replay:{tmp_path}")))
    WORLD.off = True
    assert play(copy, search("stars")) == first


@pytest.mark.parametrize(
    "given", ["folder", "listen:here", "replay:", {"mode": "replay"}, {"folder": "x", "mode": "play"}, {"dir": "x"}]
)
def test_a_setting_that_names_no_recording_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError):
        SearchEnv(recording=given)


def test_there_is_nothing_to_replay_where_there_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no recording in"):
        Recording(tmp_path / "nowhere", "replay")


def test_a_damaged_answer_is_told(tmp_path: Path) -> None:
    play(SearchEnv(recording=f"record:{tmp_path}"), search("stars"))
    (file,) = tmp_path.glob("*/*.json")
    file.write_text("{}")
    with pytest.raises(ConfigError, match=r"delete it and record again"):
        play(SearchEnv(recording=f"replay:{tmp_path}"), search("stars"))


# ---- whole runs


def rollout(policy: Any, recording: str, seed: int | None = 0) -> list[Trajectory]:
    def make(env_id: str, **kwargs: Any) -> TextEnv:
        return SearchEnv(**kwargs)

    async def run() -> list[Trajectory]:
        runner = Runner(
            policy, Sampling(seed=seed), {"recording": recording}, RolloutLimits(live=4, retries=0), make=make
        )
        return [t async for t in runner.run(requests_for("search", SearchEnv().tasks, 3))]

    return sorted(asyncio.run(run()), key=lambda t: t.key)


def without_times(trajectories: list[Trajectory]) -> bytes:
    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: strip(entry) for key, entry in value.items() if key != "seconds"}
        return [strip(entry) for entry in value] if isinstance(value, list) else value

    return json.dumps([strip(t.to_json()) for t in trajectories]).encode()


class Model:
    """Says something else each time it is asked, as a model without a seed would; can be switched off."""

    def __init__(self) -> None:
        self.said = 0

    def __call__(self, prompt: Any) -> ToolCall:
        if WORLD.off:
            raise AssertionError("the model was asked")
        self.said += 1
        long = len(prompt.messages) > 4
        return ToolCall("answer", {"text": str(self.said)}) if long else search(f"q{self.said % 4}")


def test_a_run_is_repeated_byte_for_byte_with_world_and_model_switched_off(tmp_path: Path) -> None:
    tools, said = f"replay-or-record:{tmp_path / 'tools'}", f"replay-or-record:{tmp_path / 'said'}"
    first = rollout(CachedPolicy(ScriptedPolicy(Model()), said), tools)
    WORLD.off = True
    policy = CachedPolicy(ScriptedPolicy(Model()), f"replay:{tmp_path / 'said'}")
    again = rollout(policy, f"replay:{tmp_path / 'tools'}")
    assert without_times(again) == without_times(first)
    assert {t.stop_reason for t in again} == {StopReason.DONE}
    assert policy.recording.misses == 0 and policy.recording.hits == sum(len(t.turns) for t in again)


def test_a_replay_that_takes_another_course_is_excluded_not_scored(tmp_path: Path) -> None:
    def seeker(prompt: Any) -> ToolCall:
        return search("stars") if len(prompt.messages) < 3 else ToolCall("answer", {"text": "a"})

    rollout(ScriptedPolicy(seeker), f"record:{tmp_path}")
    other = rollout(ScriptedPolicy(lambda prompt: search("moons")), f"replay:{tmp_path}")
    assert {(t.stop_reason, t.reward) for t in other} == {(StopReason.ENV_ERROR, None)}


SCRIPT = {
    "search a": search("a"),
    "search b": search("b"),
    "fail": search("fail"),
    "note x": ToolCall("note", {"text": "x"}, "c"),
    "note y": ToolCall("note", {"text": "y"}, "c"),
}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.lists(st.sampled_from(sorted(SCRIPT)), max_size=6))
def test_any_episode_is_replayed_as_it_was(script: list[str], tmp_path: Path) -> None:
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    folder.mkdir()
    WORLD.off = False
    calls = [SCRIPT[line] for line in script]
    first = play(SearchEnv(recording=f"record:{folder}", max_turns=9, max_invalid=9), *calls)
    WORLD.off = True
    assert play(SearchEnv(recording=f"replay:{folder}", max_turns=9, max_invalid=9), *calls) == first


class ForkedEnv(SearchEnv):
    """May be forked."""

    def branch(self, twin: Any) -> None:
        pass


def test_a_fork_goes_on_from_where_it_was_in_the_recording(tmp_path: Path) -> None:
    def twice(mode: str) -> list[Any]:
        env = ForkedEnv(recording=f"{mode}:{tmp_path}")
        env.reset(options={"task": 0})
        env.step(search("stars"))
        env.step(ToolCall("note", {"text": "x"}))
        twin = env.fork()
        seen = [env.step(search("stars"))[0], twin.step(search("stars"))[0], twin.step(search("stars"))[0]]
        env.close()
        twin.close()
        return seen

    first = twice("record")
    assert first[0] == first[1] and WORLD.asked == 3
    WORLD.off = True
    assert twice("replay") == first
