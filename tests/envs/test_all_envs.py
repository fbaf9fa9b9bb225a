"""The contract, over every registered id: a new environment is tested by being in the registry."""

import functools
import json
import pickle
import subprocess
import sys
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

from skyrl_gym.cli.needs import missing_needs
from skyrl_gym.env import TextEnv
from skyrl_gym.registration import RegistryEntry, env_class, make_env, registered


def _built_in() -> list[Any]:
    return [pytest.param(entry, id=entry.id) for entry in registered() if entry.id.startswith("skyrl/")]


@pytest.fixture(params=_built_in())
def entry(request: pytest.FixtureRequest) -> RegistryEntry:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def playable(entry: RegistryEntry) -> RegistryEntry:
    """An entry whose needs are met here."""
    if missing := missing_needs(entry.needs):
        pytest.skip(f"{entry.id} needs {'; '.join(missing)}")
    return entry


def in_a_fresh_process(code: str) -> str:
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd="/")
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_the_id_is_versioned_and_says_what_it_is(entry: RegistryEntry) -> None:
    assert gym.envs.registration.parse_env_id(entry.id)[2] is not None
    assert entry.summary.endswith(".")


@pytest.mark.parametrize(("imports", "prefix"), [("skyrl_gym", ""), ("sys", "skyrl_gym:")])
def test_it_is_made_in_a_fresh_process(entry: RegistryEntry, imports: str, prefix: str) -> None:
    code = (
        f"import gymnasium as gym, {imports}\n"
        f"env = gym.make({prefix + entry.id!r})\n"
        "print(type(env.unwrapped).__name__, env.spec.id)\nenv.close()"
    )
    assert in_a_fresh_process(code) == f"{entry.entry_point.rpartition(':')[2]} {entry.id}"


def test_gymnasium_finds_nothing_wrong(playable: RegistryEntry) -> None:
    env = gym.make(playable.id).unwrapped
    check_env(env, skip_render_check=True)
    env.close()


def test_the_spec_survives_json(entry: RegistryEntry) -> None:
    env = gym.make(entry.id, max_turns=7)
    spec = gym.envs.registration.EnvSpec.from_json(env.spec.to_json())  # type: ignore[union-attr]
    again = gym.make(spec)
    assert again.spec == env.spec
    assert again.unwrapped.max_turns == 7  # type: ignore[attr-defined]
    assert again.action_space == env.action_space
    assert again.observation_space == env.observation_space


def test_it_survives_pickling(entry: RegistryEntry) -> None:
    env = make_env(entry.id, max_turns=7)
    again = pickle.loads(pickle.dumps(env))
    assert type(again) is type(env)
    assert again.max_turns == 7
    assert again.action_space == env.action_space


def test_two_run_side_by_side_in_a_vector(playable: RegistryEntry) -> None:
    vector = gym.vector.SyncVectorEnv([lambda: gym.make(playable.id)] * 2, autoreset_mode="Disabled")
    _step_twice(vector)


def test_make_vec_gives_such_a_vector(playable: RegistryEntry) -> None:
    _step_twice(gym.make_vec(playable.id, num_envs=2, vectorization_mode="sync"))


def test_make_vec_gives_a_vector_of_ours_by_default(playable: RegistryEntry) -> None:
    _step_twice(gym.make_vec(playable.id, num_envs=2))


def test_every_id_names_its_vector(entry: RegistryEntry) -> None:
    name = gym.spec(entry.id).vector_entry_point
    assert name == f"skyrl_gym.vector.entry:{entry.entry_point.replace(':', '.')}"
    assert gym.envs.registration.load_env_creator(name).args == (env_class(entry.id),)  # type: ignore[union-attr]


def _step_twice(vector: Any) -> None:
    observations, _ = vector.reset(seed=[1, 2])
    assert len(observations) == 2
    for _ in range(2):
        observations, rewards, terminated, truncated, _ = vector.step(["no call", "no call"])
        assert len(observations) == 2
        assert rewards.shape == terminated.shape == truncated.shape == (2,)
    vector.close()


def test_a_seed_gives_the_same_task_and_messages_in_another_process(playable: RegistryEntry) -> None:
    code = (
        "import json, skyrl_gym\nfrom skyrl_gym.messages import to_openai\n"
        "from skyrl_gym.registration import make_env\n"
        f"env = make_env({playable.id!r})\n"
        "messages, info = env.reset(seed=5)\n"
        "print(json.dumps([info['task_id'], [to_openai(m) for m in messages]]))\nenv.close()"
    )
    first, second = json.loads(in_a_fresh_process(code)), json.loads(in_a_fresh_process(code))
    assert first == second


def test_every_split_has_tasks_with_ids_of_their_own(entry: RegistryEntry) -> None:
    if "source" in entry.kwargs:
        pytest.skip("its tasks are on a hub or in a file of the user's; tests/envs/swe/test_sources.py reads such")
    seen: set[str] = set()
    for split in make_env(entry.id).splits:
        tasks = make_env(entry.id, split=split).tasks
        hashes = {task.hash for task in tasks.take(20)}
        assert len(hashes) == min(20, len(tasks))
        assert not hashes & seen, f"{split} shares tasks with another split"
        seen |= hashes


def test_sampled_actions_fit_their_tools(entry: RegistryEntry) -> None:
    env = make_env(entry.id)
    tools = {tool.name: tool for tool in env.make_tools()}
    env.action_space.seed(3)
    for _ in range(50):
        call = env.action_space.sample()
        assert env.action_space.contains(call)
        assert set(tools[call.name].parse(call.arguments)) >= set(call.arguments)


def test_a_step_with_a_sampled_action_gives_the_five_tuple(playable: RegistryEntry) -> None:
    env: TextEnv = make_env(playable.id)
    env.action_space.seed(3)
    env.reset(seed=3)
    messages, reward, terminated, truncated, info = env.step(env.action_space.sample())
    env.close()
    assert env.observation_space.contains(messages)
    assert isinstance(reward, float)
    assert not (terminated and truncated)
    assert ("stop_reason" in info) == (terminated or truncated)


def test_two_run_in_processes_of_their_own(playable: RegistryEntry) -> None:
    make = functools.partial(gym.make, f"skyrl_gym:{playable.id}")
    _step_twice(gym.vector.AsyncVectorEnv([make, make], shared_memory=False, context="spawn"))
