"""TextEnv: the Gymnasium contract, the hooks, the limits."""

import pickle
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

from skyrl_gym import ContextEdit, Grade, Task, TaskSet, TextEnv, ToolCall, assistant, finish, system, tool, user
from skyrl_gym.errors import ConfigError, EnvError, MessageError, StopReason, TaskError


class Guess(TextEnv):
    """Guess a number; `told` counts the hooks that ran."""

    default_max_turns = 5

    def __init__(self, broken: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.broken = broken
        self.told: list[str] = []

    def load_tasks(self, split: str) -> TaskSet:
        return TaskSet.from_generator(lambda i: {"id": f"{split}-{i}", "secret": i}, 20)

    async def setup(self, task: Task) -> tuple[Any, ...]:
        self.told.append("setup")
        if self.broken == "setup":
            raise EnvError("no world")
        self.last = -1
        return (system("Guess."), user(f"A number below {len(self.tasks)}."))

    @tool
    def guess(self, number: int) -> str:
        """Guesses."""
        self.last = number
        return "right" if number == self.task.data["secret"] else "wrong"

    @tool
    async def submit(self) -> Any:
        """Ends."""
        return finish()

    @tool(effect="context")
    def forget(self) -> ContextEdit:
        """Starts the conversation anew."""
        return ContextEdit((user("Again."),), reward=0.25)

    def grade(self) -> Grade:
        self.told.append("grade")
        return Grade(float(self.last == self.task.data["secret"]), {"last": self.last})

    def teardown(self) -> None:
        self.told.append("teardown")

    def branch(self, twin: "Guess") -> None:
        if self.broken == "branch":
            raise EnvError("no second world")
        twin.told = ["branch"]


@pytest.fixture
def env() -> Any:
    env = Guess(render_mode="ansi")
    yield env
    env.close()


def test_an_episode_through_gymnasiums_api(env: Guess) -> None:
    observation, info = env.reset(options={"task": "train-7"})
    assert [m.role for m in observation] == ["system", "user"]
    assert info == {"task_id": "train-7"}
    observation, reward, terminated, truncated, info = env.step(ToolCall("guess", {"number": 7}))
    assert (observation[-1].content, reward, terminated, truncated) == ("right", 0.0, False, False)
    observation, reward, terminated, truncated, info = env.step(ToolCall("submit"))
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["stop_reason"] == "done"
    assert info["metrics"] == {"last": 7}
    assert '-> guess({"number": 7})' in str(env.render())


@pytest.mark.parametrize(
    "action",
    [
        ToolCall("guess", {"number": 3}),
        [ToolCall("guess", {"number": 1}), ToolCall("guess", {"number": 3})],
        assistant("I think", ToolCall("guess", {"number": 3})),
        'I think <tool_call>{"name": "guess", "arguments": {"number": 3}}</tool_call>',
    ],
)
def test_every_form_of_action(env: Guess, action: Any) -> None:
    env.reset(options={"task": 3})
    observation, *_ = env.step(action)
    assert observation[-1].content == "right"
    assert observation[-1].tool_call_id == observation[2].tool_calls[-1].id


def test_a_seed_picks_the_task(env: Guess) -> None:
    first = [env.reset(seed=s)[1]["task_id"] for s in range(30)]
    assert first == [env.reset(seed=s)[1]["task_id"] for s in range(30)]
    assert len(set(first)) > 10
    env.reset(seed=1)
    assert env.reset()[1] != env.reset()[1] or env.reset()[1] != env.reset()[1]


def test_a_context_edit_replaces_the_conversation_and_pays_its_reward(env: Guess) -> None:
    env.reset(seed=1)
    observation, reward, *_ = env.step(ToolCall("forget"))
    assert observation == (user("Again."),)
    assert reward == 0.25


def test_turns_truncate_and_are_still_graded(env: Guess) -> None:
    env.reset(options={"task": 3})
    for _ in range(4):
        assert env.step(ToolCall("guess", {"number": 3}))[2:4] == (False, False)
    _, reward, terminated, truncated, info = env.step(ToolCall("guess", {"number": 3}))
    assert (reward, terminated, truncated, info["stop_reason"]) == (1.0, False, True, "max_turns")


@pytest.mark.parametrize("action", ["no call at all", ToolCall("nope"), ToolCall("guess", "{broken"), "<tool_call>{"])
def test_unusable_answers_in_a_row_end_the_episode(env: Guess, action: Any) -> None:
    env.reset(seed=1)
    assert env.step(action)[4]["invalid"]
    env.step(ToolCall("guess", {"number": 1}))
    for _ in range(2):
        assert env.step(action)[3] is False
    assert env.step(action)[4]["stop_reason"] == "invalid_calls"


def test_every_call_of_a_message_is_answered_even_those_over_the_limit(env: Guess) -> None:
    env.reset(seed=1)
    observation, *_ = env.step([ToolCall("guess", {"number": i}) for i in range(20)])
    answers = [m for m in observation if m.role == "tool"]
    assert len(answers) == 20
    assert answers[-1].content.startswith("Not executed")


def test_stepping_outside_an_episode_is_refused(env: Guess) -> None:
    with pytest.raises(MessageError, match="reset"):
        env.step(ToolCall("submit"))
    env.reset(seed=1)
    env.step(ToolCall("submit"))
    with pytest.raises(MessageError, match="reset"):
        env.step(ToolCall("submit"))


def test_every_setup_is_torn_down_once(env: Guess) -> None:
    env.reset(seed=1)
    env.reset(seed=2)
    env.close()
    env.close()
    assert env.told.count("setup") == env.told.count("teardown") == 2
    broken = Guess(broken="setup")
    with pytest.raises(EnvError):
        broken.reset(seed=1)
    broken.close()
    assert broken.told == ["setup", "teardown"]


def test_a_task_that_is_refused_leaves_the_episode_that_was_under_way(env: Guess) -> None:
    env.reset(options={"task": 7})
    with pytest.raises(TaskError, match="has no task"):
        env.reset(options={"task": "nope"})
    assert env.told == ["setup"]
    env.step(ToolCall("guess", {"number": 7}))
    assert env.step(ToolCall("submit"))[1] == 1.0


@pytest.mark.parametrize(
    ("options", "says"),
    [({"task": "nope"}, "has no task 'nope'"), ({"task": 99}, "an index below 20"), ({"tsk": 1}, "got tsk")],
)
def test_a_wrong_task_option_is_named(env: Guess, options: dict[str, Any], says: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=says):
        env.reset(options=options)


@pytest.mark.parametrize("kwargs", [{"split": "dev"}, {"render_mode": "human"}, {"dialect": "klingon"}])
def test_wrong_settings_are_named(kwargs: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=str(next(iter(kwargs.values())))):
        Guess(**kwargs)


@pytest.mark.parametrize("name", ["max_turns", "max_invalid", "max_repeats"])
@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_of_nothing_is_refused_and_not_taken_for_no_limit(name: str, limit: int) -> None:
    with pytest.raises(ConfigError, match=f"{name} is at least 1, .*; got {limit}"):
        Guess(**{name: limit})


def test_an_empty_task_set_is_an_error_in_words() -> None:
    env = Guess(tasks=TaskSet.from_rows([], "mine"))
    with pytest.raises(ConfigError, match=r"'mine' .* is empty"):
        env.reset(seed=1)
    env.close()


def test_it_passes_gymnasiums_own_checks() -> None:
    gym.register("test/guess-v0", entry_point=Guess)
    try:
        env = gym.make("test/guess-v0", render_mode="ansi")
        check_env(env.unwrapped, skip_render_check=False)
        env.close()
        assert isinstance(pickle.loads(pickle.dumps(Guess())), Guess)
    finally:
        del gym.registry["test/guess-v0"]


def test_it_works_in_a_vector() -> None:
    envs = gym.vector.SyncVectorEnv([Guess, Guess])
    observations, _ = envs.reset(seed=[1, 2])
    assert len(observations) == 2
    observations, *_ = envs.step([ToolCall("submit"), ToolCall("forget")])
    assert observations[1] == (user("Again."),)
    envs.close()


def test_an_episode_in_flight_is_not_pickled(env: Guess) -> None:
    env.reset(seed=1)
    with pytest.raises(MessageError, match="during an episode"):
        pickle.dumps(env)
    env.close()
    assert pickle.loads(pickle.dumps(env)).max_turns == 5


def test_the_stop_reason_is_known_while_and_after(env: Guess) -> None:
    env.reset(seed=1)
    assert env.stop_reason is None
    env.step(ToolCall("submit"))
    assert env.stop_reason is StopReason.DONE


def test_a_fork_goes_on_from_the_same_point_and_neither_sees_the_other() -> None:
    env = Guess()
    env.reset(options={"task": 7})
    env.step(ToolCall("guess", {"number": 1}))
    twin = env.fork()
    assert twin.conversation == env.conversation
    env.step(ToolCall("guess", {"number": 7}))
    env.close()
    assert (twin.last, twin.told) == (1, ["branch"])
    twin.step(ToolCall("guess", {"number": 2}))
    third = twin.fork()
    assert [one.step(ToolCall("submit"))[1] for one in (third, twin)] == [0.0, 0.0]
    assert twin.np_random.integers(2**30) == third.np_random.integers(2**30)
    for one in (twin, third):
        one.close()
    assert env.told == ["setup", "teardown"]
    assert twin.told == ["branch", "grade", "teardown"]


def test_a_fork_that_fails_leaves_the_episode_as_it_was() -> None:
    env = Guess(broken="branch")
    with pytest.raises(MessageError, match="reset"):
        env.fork()
    env.reset(options={"task": 7})
    with pytest.raises(EnvError, match="no second world"):
        env.fork()
    assert env.step(ToolCall("submit"))[2]
    env.close()
    assert env.told == ["setup", "grade", "teardown"]


def test_an_environment_that_can_not_be_forked_says_so() -> None:
    class Plain(Guess):
        branch = TextEnv.branch  # type: ignore[assignment]

    env = Plain()
    env.reset(seed=1)
    with pytest.raises(ConfigError, match=r"Plain can't be forked.*branch\(\)"):
        env.fork()
    env.close()


def test_the_same_action_with_the_same_result_again_and_again_ends_the_episode() -> None:
    class Lamp(TextEnv):
        default_max_turns = 50

        def setup(self, task: Task) -> str:
            self.looks = 0
            return "Look."

        @tool
        def look(self) -> str:
            """Looks."""
            return "dark"

        @tool
        def wait(self) -> str:
            """Waits."""
            self.looks += 1
            return f"{self.looks} minutes"

        def grade(self) -> float:
            return 0.0

    env = Lamp(tasks=TaskSet.from_rows([{"id": "t"}]), max_repeats=4)
    env.reset()
    for _ in range(10):
        assert not any(env.step(ToolCall("wait"))[2:4]), "waiting for something that moves is no repetition"
    endings = [env.step(ToolCall("look"))[4].get("stop_reason") for _ in range(4)]
    assert endings == [None, None, None, "repeated_action"]
    env.close()
