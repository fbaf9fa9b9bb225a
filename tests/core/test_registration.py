"""Registry files: what they may hold, what is said when they hold something else, and what `make_env` takes."""

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import skyrl_gym
from skyrl_gym import registration
from skyrl_gym.errors import ConfigError
from skyrl_gym.registration import make_env, read_registry, register_file, registered, settings_of

ECHO = """
from skyrl_gym import Task, TaskSet, TextEnv, finish, tool


class EchoEnv(TextEnv):
    def __init__(self, *, times: int = 1, **kwargs):
        super().__init__(**kwargs)
        self.times = times

    def load_tasks(self, split):
        return TaskSet.from_rows([{"word": "tree"}])

    def setup(self, task):
        return "Say " + task.data["word"]

    @tool
    def say(self, word: str):
        '''Says a word.'''
        return finish(word * self.times)

    def grade(self):
        return 1.0


class NotOurs:
    pass
"""


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers or imports is gone after it."""
    monkeypatch.setattr(registration, "_ENTRIES", dict(registration._ENTRIES))
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(gym.registry)
    yield
    for env_id in set(gym.registry) - before:
        del gym.registry[env_id]
    sys.modules.pop("echo_for_test", None)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    (tmp_path / "echo_for_test.py").write_text(ECHO)

    def write(text: str) -> Path:
        path = tmp_path / "registry.yaml"
        path.write_text(textwrap.dedent(text))
        return path

    return write


def test_an_entry_beside_its_file_is_made_by_its_id(write: Any) -> None:
    path = write(
        """
        echo-v0:
          entry_point: echo_for_test:EchoEnv
          summary: Says a word.
          needs: [bubblewrap]
          kwargs: {times: 2}
        """
    )
    assert register_file(path) == ("echo-v0",)
    entry = next(entry for entry in registered() if entry.id == "echo-v0")
    assert (entry.summary, entry.needs, entry.kwargs) == ("Says a word.", ("bubblewrap",), {"times": 2})
    assert make_env("echo-v0").times == 2  # type: ignore[attr-defined]
    assert make_env("echo-v0", times=3, max_turns=4).max_turns == 4
    env = gym.make("echo-v0")
    assert env.reset(seed=0)[0][0].text == "Say tree"
    env.close()


def test_registering_the_same_file_again_changes_nothing(write: Any) -> None:
    path = write("echo-v0: {entry_point: 'echo_for_test:EchoEnv'}")
    assert register_file(path) == register_file(str(path)) == ("echo-v0",)
    assert sys.path.count(str(path.parent)) == 1


def test_an_id_keeps_its_first_meaning(write: Any) -> None:
    with pytest.raises(ConfigError, match=r"'skyrl/memory-v0' is registered already, for skyrl_gym.envs"):
        register_file(write("skyrl/memory-v0: {entry_point: 'echo_for_test:EchoEnv'}"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a list", "a registry file maps environment ids to entries; got a list"),
        ("a: [unclosed", "is not YAML"),
        ("echo-v0: words", "echo-v0: an entry has the keys entry_point, .*; got 'words'"),
        ("echo-v0: {entrypoint: 'a:B'}", "unknown key 'entrypoint'; did you mean 'entry_point'?"),
        ("echo-v0: {entry_point: no_colon}", "entry_point is 'package.module:Class'; got 'no_colon'"),
        ("echo-v0: {summary: words}", "entry_point is 'package.module:Class'; got None"),
        ("echo-v0: {entry_point: 'a:B', needs: bubblewrap}", "needs is a list; got 'bubblewrap'"),
        ("echo-v0: {entry_point: 'a:B', kwargs: [1]}", r"kwargs is a mapping; got \[1\]"),
    ],
)
def test_a_malformed_file_is_named_with_what_is_wrong(write: Any, text: str, said: str) -> None:
    path = write(text)
    with pytest.raises(ConfigError, match=said) as caught:
        read_registry(path)
    assert str(path) in str(caught.value)


def test_an_empty_file_holds_nothing(write: Any) -> None:
    assert register_file(write("# later")) == ()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"can't read the registry file .*nowhere.yaml: No such file"):
        register_file(tmp_path / "nowhere.yaml")


def test_an_unknown_id_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown environment 'skyrl/memry-v0'; did you mean 'skyrl/memory-v0'\?"):
        make_env("skyrl/memry-v0")
    with pytest.raises(ConfigError, match="unknown environment 'xyzzy'; it is one of skyrl/memory-v0, "):
        make_env("xyzzy")


def test_an_unknown_setting_names_the_nearest_of_all_base_classes(write: Any) -> None:
    register_file(write("echo-v0: {entry_point: 'echo_for_test:EchoEnv'}"))
    assert list(settings_of("echo-v0"))[:2] == ["times", "split"]
    with pytest.raises(ConfigError, match=r"echo-v0 has no setting 'maxturns'; did you mean 'max_turns'\?"):
        make_env("echo-v0", maxturns=3)


@pytest.mark.parametrize(
    ("entry_point", "said"),
    [
        ("no_such_module:Env", "can't load no_such_module:Env: No module named 'no_such_module'"),
        ("echo_for_test:Missing", "can't load echo_for_test:Missing: .*no attribute 'Missing'"),
        ("echo_for_test:NotOurs", "not a skyrl_gym.TextEnv"),
    ],
)
def test_an_entry_point_that_leads_nowhere_is_said_to(write: Any, entry_point: str, said: str) -> None:
    register_file(write(f"lost-v0: {{entry_point: '{entry_point}'}}"))
    with pytest.raises(ConfigError, match=f"lost-v0.*{said}"):
        make_env("lost-v0")


def test_the_public_names_are_these() -> None:
    assert sorted(skyrl_gym.__all__) == skyrl_gym.__all__
    for name in skyrl_gym.__all__:
        assert getattr(skyrl_gym, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'tols'"):
        skyrl_gym.tols  # noqa: B018
