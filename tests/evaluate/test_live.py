"""The live page without a browser: the index, the filters, the pieces of pages, and who is answered."""

import http.client
import json
import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyrl_gym.errors import ConfigError, StopReason
from skyrl_gym.evaluate import open_run, summarise
from skyrl_gym.evaluate.live import Site, ViewServer
from skyrl_gym.evaluate.live.index import Index
from skyrl_gym.evaluate.live.query import Query, search
from skyrl_gym.evaluate.live.tokens import tokens_of
from skyrl_gym.evaluate.report.diffs import edit_of, patch_in
from skyrl_gym.evaluate.runs import write_json
from skyrl_gym.messages import ToolCall, assistant, user
from skyrl_gym.rollout import Journal, Trajectory, Transition, Turn, read_journal
from skyrl_gym.rollout.journal import encode_line

Make = Callable[..., Trajectory]
ATTACK = "</pre><script>window.hacked=1</script><img src=x onerror=window.hacked=1>\u202e\x1b[31m"


def write(folder: Path, trajectories: list[Trajectory], **run: Any) -> Path:
    write_json(folder / "run.json", {"kind": "eval", "config": {"env_id": "guess-v0"}, **run})
    with Journal(folder / "trajectories.jsonl") as journal:
        for trajectory in trajectories:
            journal.append(trajectory)
    return folder


def site_of(*folders: Path, **options: Any) -> Site:
    site = Site(tuple(open_run(folder) for folder in folders), **options)
    site.grow(60)
    return site


def ask(site: Site, path: str, **query: Any) -> Any:
    response = site.respond(path, {name: str(value) for name, value in query.items()})
    assert response.status == 200, response.body
    return json.loads(response.body) if response.kind == "application/json" else response.body.decode()


def said(text: str, **fields: Any) -> dict[str, Any]:
    return {"turns": (Turn(assistant(text)),), **fields}


# ---- the index


def test_the_index_has_the_numbers_of_the_summary(tmp_path: Path, make: Make) -> None:
    held = [make(i % 3 / 2, f"t{i % 4}", i) for i in range(10)] + [make(None, "lost")]
    folder = write(tmp_path, held)
    index = Index(folder / "trajectories.jsonl")
    while index.grow(most_bytes=500):
        pass
    assert index.survey((1,)).summary == summarise(held, (1,))
    assert [index.trajectory(i) for i in range(11)] == held
    assert index.read == index.size


def test_what_is_appended_is_found_and_a_torn_line_waits(tmp_path: Path, make: Make) -> None:
    folder = write(tmp_path, [make(1.0, "a")])
    path = folder / "trajectories.jsonl"
    index = Index(path)
    assert index.grow() and not index.grow()
    line = encode_line(make(0.0, "b"))
    with path.open("ab") as file:
        file.write(line[:50])
    index.grow()
    assert len(index.rows) == 1
    with path.open("ab") as file:
        file.write(line[50:])
    index.grow()
    assert index.trajectory(1) == make(0.0, "b")
    path.write_bytes(line)  # an evaluation set something aside: the journal is another one now
    index.grow()
    assert [row.bare.task_id for row in index.rows] == ["task-b"]


def test_damaged_lines_are_left_out_and_counted(tmp_path: Path, make: Make) -> None:
    folder = write(tmp_path, [make(1.0, "a")])
    with (folder / "trajectories.jsonl").open("ab") as file:
        file.write(b'{"no": "trajectory"}\n[]\nnot json\n' + encode_line(make(0.0, "b")))
    site = site_of(folder)
    status = ask(site, "/status")
    assert (status["rows"], status["damaged"]) == (2, 3)
    assert "task-b" in ask(site, "/trajectory", id="p0-1")


def test_a_journal_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    write_json(tmp_path / "run.json", {"kind": "eval"})
    site = site_of(tmp_path)
    assert ask(site, "/list")["total"] == 0
    assert site.respond("/trajectory", {"id": "p0-0"}).status == 404
    assert ask(site, "/").startswith("<!doctype html>")


# ---- filters


@pytest.fixture
def mixed(tmp_path: Path, make: Make) -> Index:
    look, fix = ToolCall("look", {"at": "the sea"}, "a"), ToolCall("fix", {"path": 'a "b"\n'}, "b")
    held = [
        make(1.0, "a", turns=(Turn(assistant("Alpha", look)),)),
        make(0.0, "b", turns=(Turn(assistant("beta", fix)), Turn(assistant("x")))),
        make(0.5, "c", stop_reason=StopReason.MAX_TURNS, **said("Gamma Straße")),
        make(None, "d", artifacts={"patch": "epsilon"}, **said("delta")),
    ]
    index = Index(write(tmp_path, held) / "trajectories.jsonl")
    index.grow()
    return index


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, "abcd"),
        ({"order": "last"}, "dcba"),
        ({"order": "best"}, "acbd"),
        ({"order": "worst"}, "bcad"),
        ({"order": "longest"}, "bacd"),
        ({"outcome": "max_turns"}, "c"),
        ({"reward": "passed"}, "a"),
        ({"reward": "partial"}, "c"),
        ({"reward": "none"}, "b"),
        ({"reward": "excluded"}, "d"),
        ({"tool": "look"}, "a"),
        ({"text": "ALPHA"}, "a"),
        ({"text": "the sea"}, "a"),
        ({"text": 'a "B"'}, "b"),
        ({"text": "STRASSE"}, ""),
        ({"text": "gamma straße"}, "c"),
        ({"text": "EPSILON"}, "d"),
        ({"text": "role"}, ""),  # a word of the file format is no word of a message
        ({"text": "task-b"}, "b"),
        ({"text": "e", "reward": "passed", "tool": "fix"}, ""),
    ],
)
def test_filters_find_what_they_say(mixed: Index, query: dict[str, str], found: str) -> None:
    positions = search(mixed, Query(**query)).positions
    assert "".join(mixed.rows[p].bare.group for p in positions) == found


@settings(deadline=None)
@given(
    most=st.integers(1, 7), text=st.sampled_from(["", "e", "zzz", "number 1"]), order=st.sampled_from(["first", "best"])
)
def test_pages_together_are_the_whole(
    most: int, text: str, order: str, tmp_path_factory: pytest.TempPathFactory, make_any: Make
) -> None:
    folder = tmp_path_factory.mktemp("run")
    held = [make_any(i % 2, f"t{i}", **said(f"number {i}")) for i in range(15)]
    index = Index(write(folder, held) / "trajectories.jsonl")
    index.grow()
    whole = search(index, Query(text=text, order=order), most=1_000)
    pages, after = [], 0
    while after is not None:
        page = search(index, Query(text=text, order=order), after, most)
        assert len(page.positions) <= most
        pages += page.positions
        after = page.after  # type: ignore[assignment]
    assert tuple(pages) == whole.positions


@pytest.fixture(scope="session")
def make_any() -> Make:
    """As `make`, for tests that draw many examples."""
    from skyrl_gym.messages import tool_result

    def made(reward: float | None, task: str, **fields: Any) -> Trajectory:
        call = ToolCall("look", {}, "c1")
        turns = (Turn(assistant("I look.", call), (tool_result(call, "a hint"),)),)
        ending = StopReason.SANDBOX_LOST if reward is None else StopReason.DONE
        values = {"turns": turns, "reward": reward, **fields}
        return Trajectory("guess-v0", task, task, task, 0, ending, (user("What?"),), **values)

    return made


# ---- pages


def test_the_two_runs_are_read_side_by_side(tmp_path: Path, make: Make) -> None:
    one = write(tmp_path / "one", [make(0.0, "a", 0, **said("from one")), make(0.0, "b", 0)])
    two = write(tmp_path / "two", [make(1.0, "b", 0), make(1.0, "a", 0, **said("from two"))])
    site = site_of(one, two)
    page = ask(site, "/")
    assert "one and two" in page and "+1.000" in page
    both = ask(site, "/trajectory", id="p0-0", beside=1)
    assert both.index("from one") < both.index("from two")
    assert "from two" not in ask(site, "/trajectory", id="p0-0")


def test_a_training_is_read_before_beside_after(tmp_path: Path, make: Make) -> None:
    write(tmp_path, [make(0.5, "x", **said("in training"))], kind="train")
    for role, reward in (("before", 0.0), ("after", 1.0)):
        write(tmp_path / "eval" / role, [make(reward, "a", 0, **said(f"said {role}"))])
    site = site_of(tmp_path)
    assert [part.role for part in site.parts] == ["training", "before", "after"]
    both = ask(site, "/trajectory", id="p1-0", beside=1)
    assert both.index("said before") < both.index("said after")
    assert "went from 0.000 to 1.000" in ask(site, "/overview")


def test_an_evaluation_that_begins_later_appears(tmp_path: Path, make: Make) -> None:
    write(tmp_path, [make(0.5, "x")], kind="train")
    site = site_of(tmp_path)
    assert ask(site, "/status")["parts"] == 1
    write(tmp_path / "eval" / "before", [make(1.0, "a")])
    site.grow(60)
    assert ask(site, "/status")["parts"] == 2 and "before" in ask(site, "/overview")


def test_two_runs_of_the_same_name_keep_apart(tmp_path: Path, make: Make) -> None:
    folders = [write(tmp_path / parent / "run", [make(1.0, "a")]) for parent in ("x", "y")]
    assert len({part.name for part in site_of(*folders).parts}) == 2


def test_tokens_show_their_mask_and_log_probability(tmp_path: Path, make: Make) -> None:
    known = Transition((5, 6), (7, 8), (-0.001, -5.0), 3, fork=True)
    unknown = Transition((9,), (10,), None)
    turns = (Turn(assistant("a"), (user("b"),), known), Turn(assistant("c"), (), unknown), Turn(assistant("d")))
    site = site_of(write(tmp_path, [make(1.0, "a", turns=turns)]))
    shown = ask(site, "/tokens", id="p0-0", turn=1)
    assert "id 8, -5.0000" in shown and "id 5, not sampled" in shown and "policy version 3" in shown
    assert 's l1" title="id 7' in shown and 's l7" title="id 8' in shown
    missing = ask(site, "/tokens", id="p0-0", turn=2)
    assert "no log-probabilities" in missing and "0.0000" not in missing
    assert "gave no tokens" in ask(site, "/tokens", id="p0-0", turn=3)
    article = ask(site, "/trajectory", id="p0-0")
    assert article.count('class="tokens"') == 2


def test_a_long_prompt_is_cut_and_its_answer_is_not() -> None:
    tokens, left_out = tokens_of(Transition(tuple(range(5_000)), (1, 2), (-1.0, -1.0), fork=True), None)
    assert left_out == 3_000 and sum(token.sampled for token in tokens) == 2


def test_tokens_are_text_where_a_tokenizer_is(tmp_path: Path, make: Make) -> None:
    pytest.importorskip("transformers")
    from skyrl_gym.chat.testing import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path / "model")
    ids = tuple(tokenizer.encode("number <script>", add_special_tokens=False))
    turns = (Turn(assistant("a"), (), Transition((0,), ids, None, fork=True)),)
    site = site_of(write(tmp_path, [make(1.0, "a", turns=turns)]))
    shown = ask(site, "/tokens", id="p0-0", turn=1)
    assert "number <script>" in unescape(re.sub("<[^>]*>", "", shown)) and "<script" not in shown
    named = site_of(tmp_path, tokenizer=str(tmp_path / "model" / "tokenizer.json"))
    assert ask(named, "/tokens", id="p0-0", turn=1) == shown


def test_nothing_that_was_said_comes_through_as_markup(tmp_path: Path, make: Make) -> None:
    call = ToolCall(ATTACK, {ATTACK: ATTACK, "old_str": ATTACK, "new_str": ATTACK + "x"}, "c")
    turn = Turn(assistant(f"{ATTACK}\n--- a\n+++ b\n@@ -1 +1 @@\n+{ATTACK}", call))
    held = make(1.0, ATTACK, turns=(turn,), opening=(user(ATTACK),), metrics={ATTACK: 1.0}, policy=ATTACK)
    held = replace(held, artifacts={ATTACK: ATTACK, "patch": f"--- a\n+++ b\n@@ -1 +1 @@\n+{ATTACK}"})
    site = site_of(write(tmp_path / "run", [held], config={ATTACK: ATTACK, "policy": ATTACK}))
    pieces = [
        ask(site, "/"),
        ask(site, "/overview"),
        ask(site, "/list")["html"],
        ask(site, "/trajectory", id="p0-0"),
    ]
    for piece in pieces:
        assert "<script>" not in piece and "<img src=x" not in piece
        assert "\u202e" not in piece and "\x1b" not in piece
    assert ask(site, "/list", tool=ATTACK)["total"] == 1


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/nowhere", {}, 404),
        ("/../run.json", {}, 404),
        ("/trajectory", {}, 404),
        ("/trajectory", {"id": "p0-9"}, 404),
        ("/trajectory", {"id": "p0--1"}, 404),
        ("/trajectory", {"id": "p9-0"}, 404),
        ("/trajectory", {"id": "../x"}, 404),
        ("/tokens", {"id": "p0-0", "turn": "9"}, 404),
        ("/tokens", {"id": "p0-0", "turn": "x"}, 400),
        ("/list", {"order": "random"}, 400),
        ("/list", {"reward": "high"}, 400),
        ("/list", {"part": "p7"}, 400),
        ("/list", {"after": "-1"}, 400),
    ],
)
def test_what_is_wrong_is_refused(tmp_path: Path, make: Make, path: str, query: dict[str, str], status: int) -> None:
    assert site_of(write(tmp_path, [make(1.0, "a")])).respond(path, query).status == status


# ---- changes to files


def test_a_patch_is_shown_line_by_line() -> None:
    text = "Look:\ndiff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n same\n-old\n+new\n"
    kinds = "".join(kind[0] for kind, _ in patch_in(text))
    assert kinds == "shhhhsdas"
    assert "\n".join(line for _, line in patch_in(text)) == text


@pytest.mark.parametrize("text", ["", "plain", "- a list\n+ of things", "--- a heading\ntext", "diff --git is a word"])
def test_a_text_that_only_looks_like_a_patch_is_none(text: str) -> None:
    assert patch_in(text) == ()


def test_an_edit_is_shown_as_what_it_changes() -> None:
    lines = edit_of({"path": "x", "old_str": "a\nb", "new_str": "a\nc"})
    assert [kind for kind, _ in lines] == ["hunk", "same", "del", "add"]
    assert edit_of({"old_str": "a"}) == () and edit_of({"old_str": 1, "new_str": 2}) == ()


# ---- the server


def get(server: ViewServer, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request("GET", path, headers={"connection": "close", **headers})
    response = connection.getresponse()
    response.body = response.read()  # type: ignore[attr-defined]
    connection.close()
    return response


def test_the_server_answers_this_machine_under_its_own_name_only(tmp_path: Path, make: Make) -> None:
    site = Site((open_run(write(tmp_path, [make(1.0, "a b&c")])),))
    with ViewServer(site) as server:
        page = get(server, "/")
        assert page.status == 200
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert get(server, "/", host="evil.example").status == 403
        assert get(server, "/", host=f"localhost:{server.server_port}").status == 200
        while not json.loads(get(server, "/status").body)["rows"]:  # type: ignore[attr-defined]
            pass
        found = json.loads(get(server, "/list?" + urlencode({"text": "task-a b&c"})).body)  # type: ignore[attr-defined]
        assert found["count"] == 1
        assert get(server, "/live.js").headers["content-type"] == "text/javascript"
        with pytest.raises(ConfigError, match="--port takes another"):
            ViewServer(site, server.server_port)


@pytest.mark.slow
def test_a_hundred_thousand_trajectories_are_listed_at_once_and_in_little_memory(tmp_path: Path, make: Make) -> None:
    import subprocess
    import sys

    line = encode_line(make(1.0, "a", **said("word " * 400))).decode()
    write_json(tmp_path / "run.json", {"kind": "eval"})
    with (tmp_path / "trajectories.jsonl").open("w") as file:
        for i in range(100_000):
            file.write(line.replace("task-a", f"task-{i}").replace("hash-a", f"hash-{i % 25_000}"))
    code = f"""
import resource, time
from skyrl_gym.evaluate import open_run
from skyrl_gym.evaluate.live import Site
site = Site((open_run({str(tmp_path)!r}),))
while site.grow(60): pass
def timed(path, **query):
    began = time.process_time()
    assert site.respond(path, query).status == 200
    return time.process_time() - began
site.respond("/overview", {{}})
print(len(site.parts[0].index.rows), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
      *(round(timed(*q[:1], **q[1]), 2) for q in [("/overview", {{}}), ("/list", {{"order": "best"}}),
        ("/list", {{"text": "nothing"}}), ("/trajectory", {{"id": "p0-99999"}})]))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    rows, megabytes, *seconds = ran.stdout.split()
    assert int(rows) == len(list(read_journal(tmp_path / "trajectories.jsonl"))) == 100_000
    assert int(megabytes) <= 500, ran.stdout
    assert max(map(float, seconds)) < 3.0, ran.stdout
