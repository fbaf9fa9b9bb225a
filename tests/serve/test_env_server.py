"""An environment over HTTP: the same as in this process, with sessions that are bounded, reaped and freed."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import httpx
import pytest
from gymnasium.utils.env_checker import check_env

from skyrl_gym import Task, TaskSet, TextEnv, ToolCall, ToolResult, assistant, finish, tool
from skyrl_gym.errors import ConfigError, EnvError, MessageError, TaskError
from skyrl_gym.messages import user
from skyrl_gym.registration import make_env
from skyrl_gym.serve import RemoteEnv
from skyrl_gym.serve.env_server import env_app
from skyrl_gym.serve.http import check_host, running
from skyrl_gym.tools import ContextEdit

Serve = Callable[[Any], Any]


class CountEnv(TextEnv):
    """Counts; knows how many of its kind are open."""

    live = 0
    turns_taken = 0
    lock = threading.Lock()

    def load_tasks(self, split: str) -> TaskSet:
        return TaskSet.from_rows([{"id": f"t{i}"} for i in range(5)])

    def setup(self, task: Task) -> str:
        with CountEnv.lock:
            CountEnv.live += 1
        self.count = 0
        if task.data.get("broken"):
            raise EnvError("broken on purpose")
        return f"Count for {task.id}."

    @tool
    def add(self, by: int = 1) -> str:
        """Adds."""
        CountEnv.turns_taken += 1
        self.count += by
        return str(self.count)

    @tool
    def forget(self) -> ContextEdit:
        """Starts the conversation anew."""
        return ContextEdit((user(f"You had {self.count}."),))

    @tool
    def done(self) -> ToolResult:
        """Ends."""
        return finish()

    def grade(self) -> float:
        return self.count / 10

    def teardown(self) -> None:
        with CountEnv.lock:
            CountEnv.live -= 1


@pytest.fixture(autouse=True)
def _nothing_is_left_open() -> Any:
    CountEnv.live = CountEnv.turns_taken = 0
    yield


def test_a_remote_episode_is_the_local_one(serve: Serve) -> None:
    def play(env: Any) -> list[Any]:
        seen = [env.reset(options={"task": "t2"})]
        seen += [env.step(action) for action in (
            ToolCall("add", {"by": 3}, "a"), "no call", [ToolCall("add", {}, "b"), ToolCall("add", {"by": "x"}, "c")],
            ToolCall("forget", {}, "d"), assistant("Enough.", ToolCall("add", {}, "e")),
            '<tool_call>{"name": "done", "arguments": {}}</tool_call>',
        )]  # fmt: skip
        env.close()
        return seen

    remote = RemoteEnv(serve(env_app(CountEnv)).url)
    local = CountEnv()
    assert remote.action_space == local.action_space and remote.observation_space == local.observation_space
    assert play(remote) == play(local)
    assert CountEnv.live == 0


def test_gymnasium_finds_nothing_wrong_with_it(serve: Serve) -> None:
    env = RemoteEnv(serve(env_app(CountEnv)).url)
    check_env(env, skip_render_check=True)
    env.close()


def test_a_suite_of_this_package_is_served(serve: Serve) -> None:
    settings = {"document_words": 60, "chunk_words": 30}
    env = RemoteEnv(serve(env_app(lambda: make_env("skyrl/memory-v0", **settings))).url)
    local = make_env("skyrl/memory-v0", **settings)
    assert env.reset(seed=7) == local.reset(seed=7)
    assert env.description["env"] == "skyrl/memory-v0" and env.description["tasks"] == len(local.tasks)
    env.close()
    local.close()


def test_a_whole_task_may_be_handed_over(serve: Serve) -> None:
    env = RemoteEnv(serve(env_app(CountEnv)).url)
    messages, info = env.reset(options={"task": Task("mine", {"word": "漢"})})
    assert info["task_id"] == "mine" and messages[0].text == "Count for mine."
    env.close()


def test_a_turn_that_is_sent_twice_is_carried_out_once(serve: Serve) -> None:
    url = serve(env_app(CountEnv)).url
    session = httpx.post(f"{url}/reset", json={"task": "t0"}).json()["session"]
    body = {"session": session, "turn": 0, "action": {"name": "add", "arguments": {}}}
    first, second = (httpx.post(f"{url}/step", json=body).json() for _ in range(2))
    assert first == second and CountEnv.turns_taken == 1
    late = httpx.post(f"{url}/step", json=body | {"turn": 5})
    assert late.status_code == 400 and "the next turn of this session is 1" in late.json()["error"]["message"]


def test_there_are_never_more_sessions_than_allowed(serve: Serve) -> None:
    url = serve(env_app(CountEnv, sessions=2)).url
    taken = [httpx.post(f"{url}/reset", json={}) for _ in range(4)]
    assert [response.status_code for response in taken] == [200, 200, 429, 429]
    assert CountEnv.live == 2 and httpx.get(url).json()["sessions"] == 2
    waiting = RemoteEnv(url)
    threading.Timer(0.3, lambda: httpx.post(f"{url}/close", json={"session": taken[0].json()["session"]})).start()
    waiting.reset()  # waits until there is room
    waiting.close()


def test_a_session_that_could_not_begin_takes_no_place(serve: Serve) -> None:
    url = serve(env_app(CountEnv, sessions=1)).url
    for _ in range(3):
        env = RemoteEnv(url)
        with pytest.raises(EnvError, match="broken on purpose"):
            env.reset(options={"task": {"id": "x", "broken": True}})
        env.close()
    assert CountEnv.live == 0 and httpx.get(url).json()["sessions"] == 0


def test_a_session_whose_client_is_gone_is_closed_and_the_client_begins_anew(serve: Serve) -> None:
    url = serve(env_app(CountEnv, idle_s=0.2)).url
    env = RemoteEnv(url)
    env.reset()
    while CountEnv.live:
        time.sleep(0.02)
    with pytest.raises(EnvError, match="idle for"):
        env.step(ToolCall("add"))
    assert env.reset(options={"task": "t1"})[0][0].text == "Count for t1."
    env.close()


def test_sessions_do_not_meet(serve: Serve) -> None:
    url = serve(env_app(CountEnv)).url
    envs = [RemoteEnv(url) for _ in range(4)]
    seen: dict[int, str] = {}

    def play(number: int) -> None:
        envs[number].reset()
        for _ in range(5):
            messages = envs[number].step(ToolCall("add", {"by": number}))[0]
        seen[number] = messages[-1].text
        envs[number].close()

    threads = [threading.Thread(target=play, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert seen == {0: "0", 1: "5", 2: "10", 3: "15"}


def test_a_server_that_stops_closes_what_is_open(serve: Serve) -> None:
    server = serve(env_app(CountEnv))
    env = RemoteEnv(server.url)
    env.reset()
    assert CountEnv.live == 1
    server.server.should_exit = True
    server.thread.join(20)
    assert CountEnv.live == 0
    env._client.close()


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/step", {"session": "x", "action": "a"}, "no session 'x'"),
        ("/reset", {"sed": 1}, "unknown field 'sed'; /reset takes session, seed, task"),
        ("/reset", {"seed": "1"}, "a seed is a whole number"),
        ("/reset", {"task": "t9"}, "has no task 't9'"),
        ("/reset", [], "a request is a JSON object"),
    ],
)
def test_what_is_wrong_with_a_request_is_said(serve: Serve, path: str, body: Any, said: str) -> None:
    answer = httpx.post(serve(env_app(CountEnv)).url + path, json=body)
    assert answer.status_code in (400, 404) and said in answer.json()["error"]["message"]


@pytest.mark.parametrize("action", [None, 3, [], [3], {"tool": "add"}, {"role": "user", "content": "x"}])
def test_what_is_no_action_is_refused_and_changes_nothing(serve: Serve, action: Any) -> None:
    url = serve(env_app(CountEnv)).url
    session = httpx.post(f"{url}/reset", json={}).json()["session"]
    answer = httpx.post(f"{url}/step", json={"session": session, "action": action})
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "MessageError"
    assert httpx.post(f"{url}/step", json={"session": session, "turn": 0, "action": "fine"}).status_code == 200


def test_errors_are_of_the_same_class_on_the_other_side(serve: Serve) -> None:
    env = RemoteEnv(serve(env_app(CountEnv)).url)
    with pytest.raises(MessageError, match="call reset"):
        env.step("x")
    with pytest.raises(TaskError, match="has no task 'nowhere'"):
        env.reset(options={"task": "nowhere"})
    env.close()


def test_a_page_in_a_browser_can_not_post_to_it(serve: Serve) -> None:
    url = serve(env_app(CountEnv)).url
    answer = httpx.post(f"{url}/reset", content="{}", headers={"content-type": "text/plain"})
    assert answer.status_code == 400 and CountEnv.live == 0


def test_a_token_is_wanted_where_one_is_set(serve: Serve) -> None:
    url = serve(env_app(CountEnv, token="secret")).url
    assert httpx.get(url).status_code == 401
    with pytest.raises(EnvError, match="wants its token"):
        RemoteEnv(url, token="wrong")
    env = RemoteEnv(url, token="secret")
    env.reset()
    env.close()


def test_other_machines_are_let_in_with_a_token_only() -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        check_host(host, None)
    for host in ("0.0.0.0", "192.168.1.4", "example.com", "::"):
        check_host(host, "token")
        with pytest.raises(ConfigError, match="set a token"):
            check_host(host, None)


def test_fifty_servers_that_start_at_once_get_ports_of_their_own() -> None:
    """verifiers#1264, #1513, #1526, #1013: a port that was free a moment ago is another's now."""
    at_once = threading.Barrier(50)
    urls: list[str] = []

    def play() -> None:
        at_once.wait(60)
        with running(env_app(CountEnv), "127.0.0.1", 0) as url, closing(RemoteEnv(url)) as env:
            env.reset(options={"task": "t1"})
            urls.append(url)
            at_once.wait(60)  # all are up together

    players = [threading.Thread(target=play) for _ in range(50)]
    for player in players:
        player.start()
    for player in players:
        player.join(120)
    assert len(urls) == len(set(urls)) == 50


def test_a_server_that_is_not_there_is_an_error_of_the_machinery() -> None:
    with pytest.raises(EnvError, match="can't be reached"):
        RemoteEnv("http://127.0.0.1:9", timeout_s=0.2)


def test_the_command_serves_until_it_is_interrupted() -> None:
    command = [sys.executable, "-m", "skyrl_gym", "serve-env", "skyrl/memory-v0", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        env = RemoteEnv(process.stdout.readline().split()[-1])
        assert env.reset(seed=0)[0]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) in (0, 130)
        env.close()
