"""What fails in one environment of a vector ends its own episode; a bug is raised; closing frees everything."""

from typing import Any

import numpy as np
import pytest

from skyrl_gym import ToolCall
from skyrl_gym.errors import MessageError
from skyrl_gym.vector import TextVectorEnv
from tests.vector.walks import ARRIVE, fall, walk

QUICK = {"setup_s": 0.3, "turn_s": 0.3, "grade_s": 0.3, "teardown_s": 0.3, "stop_s": 0.1}
PATIENT = {"setup_s": 60, "turn_s": 60}


@pytest.mark.parametrize(
    ("how", "ending", "said"),
    [("lost", "sandbox_lost", "SandboxLost: the ground is gone"), ("env", "env_error", "EnvError: night has come")],
)
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_a_failure_of_the_machinery_truncates_one_episode_and_names_itself(
    world: Any, mode: str, how: str, ending: str, said: str
) -> None:
    envs = TextVectorEnv([world] * 3, autoreset_mode=mode)
    envs.reset(seed=0)
    observations, rewards, terminated, truncated, infos = envs.step([walk(10), fall(how), ARRIVE])
    assert terminated.tolist() == [False, False, True] and truncated.tolist() == [False, True, False]
    assert rewards[1] == 0.0 and rewards[0] == 0.1
    told = infos["final_info"] if mode == "SameStep" else infos
    assert told["stop_reason"][1:].tolist() == [ending, "done"]
    assert told["error"].tolist() == [None, said, None]
    if mode == "Disabled":
        envs.reset(options={"reset_mask": np.array([False, True, True])})
    elif mode == "NextStep":
        observations, *_ = envs.step([walk(1), walk(1), walk(1)])
        assert [len(messages) for messages in observations] == [5, 1, 1]
    _, rewards, _, truncated, _ = envs.step([walk(10), walk(20), walk(30)])
    assert rewards[1:].tolist() == [0.2, 0.3] and not truncated[1]
    envs.close()


def test_a_step_out_of_time_is_the_agents_own_failure_and_graded(world: Any) -> None:
    envs = TextVectorEnv([world] * 2, deadlines={**PATIENT, "turn_s": 0.5})
    envs.reset(options={"task": {"id": "t", "worth": 0.7}})
    _, rewards, terminated, truncated, infos = envs.step([fall("hang"), "no call"])
    assert (rewards[0], terminated[0], truncated[0]) == (0.7, False, True)
    assert infos["stop_reason"].tolist() == ["turn_timeout", None]
    envs.close()


@pytest.mark.parametrize(("how", "ending"), [("fail", "setup_error"), ("hang", "setup_timeout")])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_an_episode_that_could_not_begin_is_truncated_by_its_first_step(
    world: Any, mode: str, how: str, ending: str
) -> None:
    envs = TextVectorEnv([world] * 2, autoreset_mode=mode, deadlines={**PATIENT, "setup_s": 1})
    observations, infos = envs.reset(options={"tasks": [{"id": "good"}, {"id": "bad", "setup": how}]})
    assert observations[0] and observations[1] == ()
    assert observations in envs.observation_space
    assert infos["stop_reason"].tolist() == [None, ending]
    _, _, terminated, truncated, infos = envs.step([walk(1), walk(1)])
    assert truncated.tolist() == [False, True] and not terminated.any()
    told = infos["final_info"] if mode == "SameStep" else infos
    assert told["stop_reason"][1] == ending and told["task_id"][1] == "bad"
    if mode == "Disabled":
        envs.reset(options={"reset_mask": truncated})
    elif mode == "NextStep":
        envs.step([walk(1), walk(1)])
    observations, *_ = envs.step([walk(1), walk(7)])
    assert observations[1][-1].text == "walked 7"
    envs.close()


def test_a_fresh_environment_after_a_failure_goes_on_drawing_where_the_old_one_was(world: Any) -> None:
    def tasks_drawn(first: ToolCall) -> list[str]:
        envs = TextVectorEnv([world], autoreset_mode="SameStep")
        envs.reset(seed=3)
        infos = [envs.step([action])[4] for action in (first, ARRIVE, ARRIVE)]
        envs.close()
        return [info["task_id"][0] for info in infos]

    assert tasks_drawn(fall("lost")) == tasks_drawn(ARRIVE)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_a_bug_is_raised_and_the_vector_can_be_reset(world: Any, mode: str) -> None:
    envs = TextVectorEnv([world] * 3, autoreset_mode=mode)
    envs.reset(seed=0)
    with pytest.raises(TypeError, match="planted in a tool"):
        envs.step([walk(1), fall("bug"), walk(1)])
    with pytest.raises(MessageError, match="environment 1 was stopped in its last step: reset it first"):
        envs.step([walk(1)] * 3)
    observations, _ = envs.reset(options={"reset_mask": np.array([False, True, False])})
    assert [len(messages) for messages in observations] == [3, 1, 3]
    with pytest.raises(TypeError, match="planted in setup"):
        envs.reset(options={"tasks": [{"id": "a"}, {"id": "b", "setup": "bug"}, {"id": "c"}]})
    envs.reset(seed=0)
    envs.step([walk(1)] * 3)
    envs.close()


def test_closing_frees_everything_after_a_step_that_raised(world: Any) -> None:
    envs = TextVectorEnv([world] * 3)
    envs.reset(seed=0)
    with pytest.raises(TypeError, match="planted"):
        envs.step([fall("bug"), fall("bug"), walk(1)])
    envs.close()
    assert envs.closed and world.world["closed"] == 3


def test_closing_frees_everything_while_actions_are_in_flight(world: Any) -> None:
    envs = TextVectorEnv([world] * 3)
    envs.reset(seed=0)
    envs.send([0, 1], [fall("hang"), walk(1)])
    envs.close()
    assert world.world["closed"] == 3


def test_resetting_all_drops_what_is_in_flight(world: Any) -> None:
    envs = TextVectorEnv([world] * 2)
    envs.reset(seed=0)
    envs.send(0, fall("hang"))
    with pytest.raises(MessageError, match=r"environments \[0\] have results to come"):
        envs.reset(options={"reset_mask": np.array([False, True])})
    with pytest.raises(MessageError, match=r"environments \[0\] have results to come"):
        envs.step([walk(1)] * 2)
    envs.reset(seed=0)
    observations, *_ = envs.step([walk(1)] * 2)
    assert [len(messages) for messages in observations] == [3, 3]
    envs.close()


def test_a_teardown_that_fails_or_hangs_keeps_nobody_from_closing(world: Any, caplog: Any) -> None:
    import asyncio

    class Stubborn(world):  # type: ignore[misc]
        async def teardown(self) -> None:
            await super().teardown()
            if self.task.id == "raises":
                raise OSError("device busy")
            if self.task.id == "hangs":
                await asyncio.sleep(3_600)

    envs = TextVectorEnv([Stubborn] * 3, deadlines=QUICK)
    envs.reset(options={"tasks": [{"id": "raises"}, {"id": "hangs"}, {"id": "fine"}]})
    envs.close()
    assert "teardown of environment 0 failed" in caplog.text
    assert "teardown of environment 1 did not end within 0.3 s: a leak" in caplog.text
