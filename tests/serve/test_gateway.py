"""The gateway: whatever an agent does, what the model said is recorded token for token, and the episode graded."""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from skyrl_gym import Grade, StopReason, Task, TaskSet, TextEnv, ToolCall, ToolResult, finish, tool
from skyrl_gym.chat import Renderer
from skyrl_gym.chat.testing import tiny_tokenizer
from skyrl_gym.errors import PolicyError
from skyrl_gym.evaluate import open_run, summarise
from skyrl_gym.evaluate.report import write_report
from skyrl_gym.evaluate.runs import write_json
from skyrl_gym.policy import Completion, Prompt, Sampling
from skyrl_gym.rollout import Journal, Trajectory, read_journal
from skyrl_gym.serve.agents import run_agents
from skyrl_gym.serve.gateway import Gateway
from skyrl_gym.serve.gateway_server import gateway_app
from skyrl_gym.trainer.samples import samples_of

pytest.importorskip("transformers")
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


class GardenEnv(TextEnv):
    """Find the flower."""

    live = 0

    def load_tasks(self, split: str) -> TaskSet:
        return TaskSet.from_rows([{"id": f"t{i}"} for i in range(3)])

    def setup(self, task: Task) -> str:
        GardenEnv.live += 1
        self.found = False
        return f"Find the flower of {task.id}."

    @tool
    def look(self) -> ToolResult:
        """Looks."""
        return ToolResult("a rose", reward=0.25)

    @tool
    def pick(self) -> ToolResult:
        """Picks it."""
        self.found = True
        return finish("picked")

    def grade(self) -> Grade:
        return Grade(float(self.found), artifacts={"picked": str(self.found)})

    def teardown(self) -> None:
        GardenEnv.live -= 1


class Model:
    """Says the next of some lines in tokens, each with a log-probability of its own."""

    name = "model"

    def __init__(self, lines: Callable[[int], str]) -> None:
        self.renderer = Renderer(tiny_tokenizer("chatml_tools"))
        self.prompts: list[tuple[int, ...]] = []
        self.samplings: list[Sampling] = []
        self.closed = 0
        self._lines = lines

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        assert prompt.token_ids is not None
        text = self._lines(len(self.prompts))
        if text == "fail":
            raise PolicyError("the model is gone")
        self.prompts.append(prompt.token_ids)
        self.samplings.append(sampling)
        ids = (*self.renderer.tokenizer.encode(text, add_special_tokens=False), min(self.renderer.eos_ids))
        return Completion(text, token_ids=ids, logprobs=tuple(-0.01 * i for i in range(len(ids))))

    async def aclose(self) -> None:
        self.closed += 1


def talk(number: int) -> str:
    call = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    return f"<think>t{number}</think>\nline {number} {call if number % 2 == 0 else ''}"


class Running:
    """A gateway that serves."""

    def __init__(self, url: str, model: Model, journal: Path) -> None:
        self.url, self.model, self.journal = url, model, journal

    def open(self, **body: Any) -> dict[str, Any]:
        answer = httpx.post(f"{self.url}/sessions", json={"task": "t0", **body})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def ask(self, session: dict[str, Any], messages: list[Any], **body: Any) -> httpx.Response:
        return httpx.post(f"{session['base_url']}/chat/completions", json={"messages": messages, **body})

    def say(self, session: dict[str, Any], messages: list[Any], **body: Any) -> dict[str, Any]:
        answer = self.ask(session, messages, **body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json()["choices"][0]["message"])

    def finish(self, session: dict[str, Any], **body: Any) -> Trajectory:
        answer = httpx.post(f"{session['url']}/finish", json=body)
        assert answer.status_code == 200, answer.text
        return self.trajectories()[-1]

    def trajectories(self) -> list[Trajectory]:
        return list(read_journal(self.journal))


@pytest.fixture
def gateway(serve: Any, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    GardenEnv.live = 0
    journals: list[Journal] = []

    def start(lines: Callable[[int], str] = talk, *, idle_s: float = 60.0, **options: Any) -> Running:
        model = Model(lines)
        journals.append(Journal(tmp_path / "trajectories.jsonl"))
        made = Gateway("garden-v0", GardenEnv, model, Sampling(seed=0), journals[-1], **options)
        return Running(serve(gateway_app(made, sessions=4, idle_s=idle_s)).url, model, journals[-1].path)

    yield start
    for journal in journals:
        journal.close()


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def result(message: dict[str, Any], text: str) -> dict[str, str]:
    return {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": text}


def assert_exact(running: Running, trajectory: Trajectory) -> None:
    """The prompts are those that the model was given; each sampled token is trained on once."""
    assert list(trajectory.prompts()) == running.model.prompts
    samples = samples_of(trajectory, 0, 0.0)
    assert sum(sum(sample.mask) for sample in samples) == trajectory.sampled_tokens
    assert all(sample.logprobs is not None for sample in samples)


def test_an_agent_that_only_adds_to_its_conversation_leaves_one_exact_sequence(gateway: Any) -> None:
    running = gateway()
    session = running.open()
    assert session["messages"] == [user("Find the flower of t0.")] and len(session["tools"]) == 2
    said = [{"role": "system", "content": "Be quick."}, *session["messages"]]
    for _ in range(2):
        answer = running.say(session, said, tools=[LOOK])
        said = [*said, answer, *([result(answer, "a rose")] if answer.get("tool_calls") else [user("Go on.")])]
    trajectory = running.finish(session)
    assert_exact(running, trajectory)
    assert [len(s.mask) > 0 for s in samples_of(trajectory, 0, 0.0)] == [True]
    assert all(b[: len(a)] == a for a, b in pairwise(running.model.prompts))
    assert [m.role for m in trajectory.opening] == ["system", "user"]
    assert [[m.text for m in turn.observations] for turn in trajectory.turns] == [["a rose"], []]
    assert trajectory.turns[0].message.tool_calls[0].name == "look"


def test_what_agents_leave_out_of_an_answer_changes_no_token(gateway: Any) -> None:
    running = gateway(lambda n: '<tool_call>{"name": "look", "arguments": {}}</tool_call>')
    session = running.open()
    answer = running.say(session, [user("a")], tools=[LOOK])
    echoed = {"role": "assistant", "content": "", "tool_calls": answer["tool_calls"]}
    echoed["tool_calls"][0]["function"]["arguments"] = "{ }"
    running.say(session, [user("a"), echoed, result(answer, "a rose")], tools=[LOOK])
    first, second = running.model.prompts
    assert second[: len(first)] == first
    assert len(samples_of(running.finish(session), 0, 0.0)) == 1


def test_an_agent_that_rewrites_its_history_begins_a_new_sequence(gateway: Any) -> None:
    running = gateway()
    session = running.open()
    answer = running.say(session, [user("a long story")])
    running.say(session, [user("in short"), {"role": "assistant", "content": "changed"}, user("b")])
    trajectory = running.finish(session)
    assert_exact(running, trajectory)
    assert len(samples_of(trajectory, 0, 0.0)) == 2
    assert trajectory.turns[0].context_edit and answer["content"]
    assert [m.text for c in trajectory.conversations() for m in c if m.role == "user"] == [
        "a long story",
        "in short",
        "b",
    ]


def test_sub_agents_that_take_turns_keep_their_own_exact_tokens(gateway: Any) -> None:
    running = gateway(lambda n: f"answer {n}")
    session = running.open()
    one, two = [user("main")], [user("sub")]
    for _ in range(3):
        one = [*one, running.say(session, one), user("and then?")]
        two = [*two, running.say(session, two), user("go on")]
    trajectory = running.finish(session)
    assert_exact(running, trajectory)
    mains, subs = running.model.prompts[::2], running.model.prompts[1::2]
    for prompts, offset in ((mains, 0), (subs, 1)):
        for number, (before, after) in enumerate(pairwise(prompts)):
            sampled = trajectory.turns[2 * number + offset].transition
            assert sampled is not None
            assert after[: len(before) + len(sampled.sampled_ids)] == before + sampled.sampled_ids


def test_tools_are_run_and_rewarded_and_the_end_is_graded(gateway: Any) -> None:
    running = gateway()
    session = running.open()
    running.say(session, session["messages"], tools=session["tools"])
    looked = httpx.post(f"{session['url']}/call", json={"name": "look"}).json()
    assert looked == {"content": "a rose", "done": False}
    unknown = httpx.post(f"{session['url']}/call", json={"name": "lok", "arguments": "{}"}).json()
    assert "Did you mean look?" in unknown["content"]
    picked = httpx.post(f"{session['url']}/call", json={"name": "pick", "arguments": {}}).json()
    assert picked == {"content": "picked", "done": True}
    assert httpx.post(f"{session['url']}/call", json={"name": "look"}).status_code == 400
    trajectory = running.finish(session)
    assert (trajectory.reward, trajectory.stop_reason) == (1.25, StopReason.DONE)
    assert trajectory.artifacts == {"picked": "True"}
    assert (trajectory.turns[0].reward, trajectory.turns[0].errors) == (0.25, 1)
    assert "tools" in trajectory.turns[0].seconds
    assert GardenEnv.live == 0
    assert running.ask(session, [user("more")]).status_code == 404


def test_an_agent_that_knows_only_an_address_and_a_key_is_recorded_too(gateway: Any) -> None:
    running = gateway()
    session = running.open()
    headers = {"authorization": f"Bearer {session['session']}"}
    answer = httpx.post(f"{running.url}/v1/chat/completions", json={"messages": [user("a")]}, headers=headers)
    assert answer.json()["choices"][0]["finish_reason"] == "tool_calls"
    assert httpx.get(f"{running.url}/v1/models", headers=headers).json()["data"][0]["id"] == "model"
    assert httpx.post(f"{running.url}/v1/chat/completions", json={"messages": [user("a")]}).status_code == 404
    assert len(running.finish(session).turns) == 1


def test_an_answer_can_be_streamed(gateway: Any) -> None:
    running = gateway()
    session = running.open()
    body = {"messages": [user("a")], "stream": True}
    with httpx.stream("POST", f"{session['base_url']}/chat/completions", json=body) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    pieces = [json.loads(line)["choices"][0] for line in lines[:-1]]
    assert pieces[0]["delta"]["tool_calls"][0]["index"] == 0
    assert [piece["finish_reason"] for piece in pieces] == [None, "tool_calls"]


def test_the_agent_may_ask_for_fewer_tokens_and_for_nothing_else(gateway: Any) -> None:
    running = gateway()
    session = running.open()
    running.say(session, [user("a")], temperature=0.0, max_tokens=7, seed=1)
    running.say(session, [user("a")], max_completion_tokens=100_000)
    one, two = running.model.samplings
    assert (one.temperature, one.max_tokens) == (1.0, 7) and two.max_tokens == 512
    assert one.seed is not None and two.seed == one.seed + 1
    running.finish(session)


def test_a_full_context_and_used_up_turns_end_as_such_and_are_graded(gateway: Any) -> None:
    running = gateway(max_context=60, max_turns=1)
    full = running.open()
    refused = running.ask(full, [user("word " * 100)])
    assert refused.status_code == 400 and "have room for 60" in refused.text
    assert running.finish(full).stop_reason is StopReason.CONTEXT_FULL
    session = running.open()
    running.say(session, [user("a")])
    assert running.ask(session, [user("b")]).status_code == 400
    trajectory = running.finish(session)
    assert (trajectory.stop_reason, trajectory.reward) == (StopReason.MAX_TURNS, 0.0)


def test_a_model_that_fails_excludes_the_episode(gateway: Any) -> None:
    running = gateway(lambda n: "fail")
    session = running.open()
    assert running.ask(session, [user("a")]).status_code == 503
    trajectory = running.finish(session)
    assert (trajectory.stop_reason, trajectory.reward) == (StopReason.POLICY_ERROR, None)
    assert trajectory.error is not None and "the model is gone" in trajectory.error.message


def test_an_agent_that_vanished_is_graded(gateway: Any) -> None:
    running = gateway(idle_s=3.0)
    running.say(running.open(), [user("a")])
    while not running.trajectories():
        time.sleep(0.05)
    (vanished,) = running.trajectories()
    assert (vanished.stop_reason, vanished.reward, len(vanished.turns)) == (StopReason.EPISODE_TIMEOUT, 0.0, 1)
    assert GardenEnv.live == 0


def test_what_is_open_when_the_server_stops_is_recorded_as_cancelled(serve: Any, tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl") as journal:
        model = Model(talk)
        server = serve(gateway_app(Gateway("garden-v0", GardenEnv, model, Sampling(), journal)))
        running = Running(server.url, model, journal.path)
        running.say(running.open(), [user("a")])
        server.close()
        (cut,) = running.trajectories()
    assert (cut.stop_reason, cut.reward, len(cut.turns)) == (StopReason.CANCELLED, None, 1)
    assert GardenEnv.live == 0 and model.closed == 1


def test_the_folder_is_a_run_like_any_other_and_goes_on_counting(gateway: Any, tmp_path: Path) -> None:
    running = gateway()
    for task in ("t0", "t0", "t1"):
        running.finish(running.open(task=task))
    again = gateway(done=running.trajectories())
    again.finish(again.open(task="t0"))
    assert sorted((t.task_id, t.sample) for t in again.trajectories()) == [("t0", 0), ("t0", 1), ("t0", 2), ("t1", 0)]
    write_json(tmp_path / "run.json", {"kind": "eval", "config": {"env_id": "garden-v0"}})
    assert summarise(open_run(tmp_path).trajectories()).judged == 4
    assert "t1" in write_report(tmp_path).read_text()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"messages": []}, "at least one message"),
        ({}, "a list of messages"),
        ({"messages": [{"role": "robot"}]}, "role"),
        ({"messages": [{"role": "user", "content": "a"}], "n": 3}, "n is 1"),
        ({"messages": [{"role": "user", "content": "a"}], "max_tokens": -1}, "whole number from 1"),
        ({"messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 0}, "whole number from 1; got 0"),
        ({"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "web"}]}, "a function with a name"),
    ],
)
def test_a_request_that_can_not_be_served_is_refused_and_recorded_nowhere(gateway: Any, body: Any, said: str) -> None:
    running = gateway()
    session = running.open()
    answer = httpx.post(f"{session['base_url']}/chat/completions", json=body)
    assert answer.status_code == 400 and said in answer.json()["error"]["message"]
    assert running.finish(session).turns == ()


# ---- agents that are run

AGENT = """
import json, os, sys, urllib.request
def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {
        "content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
    return json.load(urllib.request.urlopen(request))
task = json.load(sys.stdin)
mode = sys.argv[1]
if mode == "broken":
    sys.exit("no such module")
said = task["messages"]
answer = post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", {"messages": said, "tools": task["tools"]})
if mode == "hang":
    import subprocess, time
    subprocess.Popen(["sleep", "1000"])
    open(sys.argv[2], "a").write(f"{os.getpid()}\\n")
    time.sleep(1000)
if mode == "dies":
    sys.exit("lost the thread")
post(os.environ["SKYRL_SESSION_URL"] + "/call", {"name": "pick"})
"""


def play(running: Running, command: str, agent_s: float = 60.0) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    tasks = GardenEnv().tasks.take(2)
    asyncio.run(run_agents(running.url, command, tasks, 2, concurrency=3, agent_s=agent_s, on_done=results.append))
    assert GardenEnv.live == 0
    return results


@pytest.fixture
def agent(tmp_path: Path) -> str:
    (tmp_path / "agent.py").write_text(AGENT)
    return f"{sys.executable} {tmp_path / 'agent.py'}"


def test_agents_are_run_on_each_task(gateway: Any, agent: str) -> None:
    running = gateway()
    results = play(running, f"{agent} works")
    assert [r["reward"] for r in results] == [1.0] * 4
    assert sorted((t.task_id, t.sample) for t in running.trajectories()) == [("t0", 0), ("t0", 1), ("t1", 0), ("t1", 1)]
    assert all(len(t.turns) == 1 and t.turns[0].transition for t in running.trajectories())


def test_an_agent_that_never_asked_is_excluded_and_one_that_died_at_work_is_graded(gateway: Any, agent: str) -> None:
    running = gateway()
    assert {r["stop_reason"] for r in play(running, f"{agent} broken")} == {"env_error"}
    error = running.trajectories()[0].error
    assert error is not None and "no such module" in error.message
    assert {(r["stop_reason"], r["reward"]) for r in play(running, f"{agent} dies")} == {("done", 0.0)}


def test_an_agent_that_takes_too_long_is_stopped_with_all_it_started(gateway: Any, agent: str, tmp_path: Path) -> None:
    running = gateway()
    results = play(running, f"{agent} hang {tmp_path / 'pids'}", agent_s=3.0)
    assert {(r["stop_reason"], r["reward"]) for r in results} == {("episode_timeout", 0.0)}
    pids = (tmp_path / "pids").read_text().split()
    assert pids and not any(map(is_alive, pids))


def is_alive(pid: str) -> bool:
    """Whether a process runs; one that is dead may still wait for its parent to look."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_token_opens_episodes_and_an_episode_its_own(serve: Any, tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl") as journal:
        app = gateway_app(Gateway("garden-v0", GardenEnv, Model(talk), Sampling(), journal), token="secret")
        url = serve(app).url
        assert httpx.post(f"{url}/sessions", json={}).status_code == 401
        opened = httpx.post(f"{url}/sessions", json={"task": "t0"}, headers={"authorization": "Bearer secret"}).json()
        assert Running(url, Model(talk), journal.path).say(opened, [user("a")])["content"]


def test_threads_of_one_agent_are_served_one_after_the_other(gateway: Any) -> None:
    running = gateway(lambda n: f"answer {n}")
    session = running.open()
    threads = [threading.Thread(target=running.say, args=(session, [user(f"q{i}")])) for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    trajectory = running.finish(session)
    assert_exact(running, trajectory)
    assert len(trajectory.turns) == 5


def test_a_model_without_tokens_is_recorded_in_messages(serve: Any, tmp_path: Path) -> None:
    from skyrl_gym.policy import ScriptedPolicy

    with Journal(tmp_path / "journal.jsonl") as journal:
        policy = ScriptedPolicy([ToolCall("look"), "It is a rose."])
        running = Running(
            serve(gateway_app(Gateway("garden-v0", GardenEnv, policy, Sampling(), journal))).url,
            Model(talk),
            journal.path,
        )
        session = running.open()
        answer = running.say(session, [user("a")])
        running.say(session, [user("a"), answer, result(answer, "a rose")])
        trajectory = running.finish(session)
    assert [turn.transition for turn in trajectory.turns] == [None, None]
    assert [m.text for m in trajectory.turns[0].observations] == ["a rose"]
