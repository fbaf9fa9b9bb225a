"""In lock-step, our vector does what Gymnasium's SyncVectorEnv does, only at once."""

import time
from collections import Counter
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics, TransformReward
from hypothesis import given, settings
from hypothesis import strategies as st

from skyrl_gym import Task, ToolCall, assistant
from skyrl_gym.errors import ConfigError, MessageError
from skyrl_gym.vector import TextVectorEnv
from tests.vector.walks import ARRIVE, Walk, fall, walk

MODES = list(AutoresetMode)
ACTIONS = st.one_of(
    st.integers(0, 9).map(walk),
    st.just(ARRIVE),
    st.just("no call at all"),
    st.just([walk(1), walk(2)]),
    st.just(assistant("thinking", walk(3))),
    st.just(ToolCall("unknown")),
)
SEEDS = st.one_of(st.integers(0, 99), st.none())


def same(ours: Any, theirs: Any) -> bool:
    return bool(data_equivalence(ours, theirs)) and repr(ours) == repr(theirs)


class Counted(Walk):
    world: ClassVar[Counter[str]] = Counter()


@settings(max_examples=60)
@given(data=st.data(), mode=st.sampled_from(MODES), num_envs=st.integers(1, 4))
def test_everything_is_what_the_sync_vector_gives(data: Any, mode: AutoresetMode, num_envs: int) -> None:
    ours = TextVectorEnv([Counted] * num_envs, autoreset_mode=mode)
    theirs = SyncVectorEnv([Counted] * num_envs, autoreset_mode=mode)
    try:
        assert ours.action_space == theirs.action_space and ours.observation_space == theirs.observation_space
        assert ours.metadata == theirs.metadata and ours.render_mode == theirs.render_mode
        seed = data.draw(st.one_of(st.integers(0, 99), st.lists(SEEDS, min_size=num_envs, max_size=num_envs)))
        seed = [0 if one is None else one for one in seed] if isinstance(seed, list) else seed
        assert same(ours.reset(seed=seed), theirs.reset(seed=seed))
        for _ in range(data.draw(st.integers(1, 8))):
            actions = data.draw(st.lists(ACTIONS, min_size=num_envs, max_size=num_envs))
            step = ours.step(actions)
            assert same(step, theirs.step(actions))
            assert step[0] in ours.observation_space
            if mode is AutoresetMode.DISABLED and (ended := step[2] | step[3]).any():
                extra = np.array(data.draw(st.lists(st.booleans(), min_size=num_envs, max_size=num_envs)))
                options = {"reset_mask": ended | extra}
                assert same(ours.reset(options=dict(options)), theirs.reset(options=dict(options)))
    finally:
        ours.close()
        theirs.close()
        assert Counted.world["opened"] == Counted.world["closed"]


def test_a_mask_resets_those_and_leaves_the_callers_options_alone(world: Any) -> None:
    envs = TextVectorEnv([world] * 3, autoreset_mode="Disabled")
    before, _ = envs.reset(seed=1)
    options = {"reset_mask": np.array([False, True, False])}
    after, infos = envs.reset(seed=7, options=options)
    assert list(options) == ["reset_mask"]
    assert after[0] == before[0] and after[2] == before[2]
    assert infos["_task_id"].tolist() == [False, True, False]
    envs.close()


@pytest.mark.parametrize("mask", [[True, False], np.array([1, 0]), np.array([True]), np.array([False, False])])
def test_a_mask_that_does_not_fit_is_refused(world: Any, mask: Any) -> None:
    envs = TextVectorEnv([world] * 2)
    with pytest.raises(MessageError, match="reset_mask"):
        envs.reset(options={"reset_mask": mask})
    envs.close()


def test_each_environment_can_get_a_task_of_its_own(world: Any) -> None:
    envs = TextVectorEnv([world] * 2)
    _, infos = envs.reset(options={"tasks": [{"id": "here"}, Task.from_row({"id": "there"})]})
    assert infos["task_id"].tolist() == ["here", "there"]
    with pytest.raises(MessageError, match="expected 2 tasks"):
        envs.reset(options={"tasks": [{"id": "here"}]})
    envs.close()


def test_in_disabled_mode_an_ended_environment_must_be_reset_before_anyone_moves(world: Any) -> None:
    envs = TextVectorEnv([world] * 2, autoreset_mode="Disabled")
    envs.reset(seed=0)
    envs.step([walk(1), ARRIVE])
    with pytest.raises(MessageError, match="environment 1 has ended its episode: reset it first"):
        envs.step([walk(1), walk(1)])
    observations, _ = envs.reset(options={"reset_mask": np.array([False, True])})
    assert [len(messages) for messages in observations] == [3, 1]
    envs.close()


@pytest.mark.parametrize("actions", ["ab", [walk(1)], [walk(1), 5], [walk(1), None], 5])
def test_what_is_no_list_of_actions_is_refused_before_anyone_moves(world: Any, actions: Any) -> None:
    envs = TextVectorEnv([world] * 2)
    envs.reset(seed=0)
    with pytest.raises(MessageError, match=r"expected 2 actions|an action is"):
        envs.step(actions)
    observations, *_ = envs.step([walk(1), walk(1)])
    assert [len(messages) for messages in observations] == [3, 3]
    envs.close()


def test_64_environments_with_a_slow_tool_take_about_as_long_as_one(world: Any) -> None:
    envs = TextVectorEnv([world] * 64)
    envs.reset(seed=0)
    for slow in ("wait", "block"):
        began = time.perf_counter()
        observations, *_ = envs.step([ToolCall(slow, {"seconds": 0.5})] * 64)
        assert time.perf_counter() - began < 16  # one after another they would take 32 s
        assert all(slow in messages[-1].text for messages in observations)
    envs.close()


def test_gymnasiums_own_wrappers_work_on_it(world: Any) -> None:
    counted = RecordEpisodeStatistics(TextVectorEnv([world] * 2))
    envs = DictInfoToList(TransformReward(counted, lambda reward: 10 * reward))
    envs.reset(options={"task": {"id": "t", "worth": 0.5}})
    envs.step([walk(10), walk(20)])
    _, rewards, terminated, _, infos = envs.step([ARRIVE, walk(20)])
    assert (rewards.tolist(), terminated.tolist()) == ([5.0, 2.0], [True, False])
    assert infos[0]["episode"]["r"] == pytest.approx(0.6) and infos[0]["episode"]["l"] == 2
    assert infos[0]["stop_reason"] == "done" and infos[0]["metrics"]["length"] == 2.0
    assert "episode" not in infos[1]
    envs.close()


@pytest.mark.parametrize("mode", MODES)
def test_make_vec_makes_it_also_from_its_spec_as_json(mode: AutoresetMode) -> None:
    made = gym.make_vec(
        "skyrl/memory-v0",
        num_envs=3,
        vectorization_mode="vector_entry_point",
        autoreset_mode=mode.value,
        deadlines={"turn_s": 5},
        document_words=60,
    )
    again = gym.make_vec(gym.envs.registration.EnvSpec.from_json(made.spec.to_json()))  # type: ignore[union-attr]
    assert isinstance(made, TextVectorEnv) and isinstance(again, TextVectorEnv)
    assert again.num_envs == 3 and again.metadata["autoreset_mode"] is mode
    assert again.spec == made.spec
    assert same(made.reset(seed=5), again.reset(seed=5))
    again.close()
    made.close()


def test_it_is_what_make_vec_gives_by_default_and_settings_go_beside_the_environments_own() -> None:
    envs = gym.make_vec("skyrl/memory-v0", num_envs=2, render_mode="ansi", document_words=60)
    assert isinstance(envs, TextVectorEnv)
    envs.reset(seed=0)
    assert [type(shown) for shown in envs.render()] == [str, str]
    envs.close()
    with pytest.raises(ConfigError, match="MemoryEnv has no setting 'document_wrds'; did you mean 'document_words'"):
        gym.make_vec("skyrl/memory-v0", document_wrds=60)
    with pytest.raises(gym.error.Error, match="only through kwargs"):
        gym.make_vec("skyrl/memory-v0", vector_kwargs={"autoreset_mode": "Disabled"})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"autoreset_mode": "Never"}, "autoreset_mode is one of NextStep, SameStep, Disabled; got 'Never'"),
        ({"deadlines": {"step_s": 1}}, "deadlines: .*unexpected keyword argument 'step_s'"),
        ({"env_fns": []}, "at least one environment"),
        ({"env_fns": [lambda: gym.make("skyrl/memory-v0")]}, "TextEnv without wrappers"),
        ({"env_fns": [Walk, lambda: gym.make("skyrl/memory-v0").unwrapped]}, "environment 1 has other tools"),
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TextVectorEnv(**{"env_fns": [Walk], **wrong})


def test_seeds_must_fit(world: Any) -> None:
    envs = TextVectorEnv([world] * 2)
    with pytest.raises(MessageError, match="expected an integer or 2 seeds; got 3"):
        envs.reset(seed=[1, 2, 3])
    envs.close()
    with pytest.raises(MessageError, match="closed"):
        envs.reset()
    envs.close()


def test_fall_and_walk_are_calls_that_fit() -> None:
    space = Walk().action_space
    assert fall("lost") in space and walk(1) in space
