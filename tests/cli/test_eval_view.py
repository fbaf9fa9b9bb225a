"""`skyrl eval` against a server in this process, and `skyrl view` on what it leaves."""

import json
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

Skyrl = Callable[..., Any]


class Painter(ThreadingHTTPServer):
    """An OpenAI-compatible server that calls everything white."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), PainterHandler)
        self.status = 200
        self.seconds = 0.0
        self.asked = 0
        self.keys: set[str | None] = set()

    @property
    def model(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1#painter"


class PainterHandler(BaseHTTPRequestHandler):
    server: Painter

    def do_POST(self) -> None:
        self.server.asked += 1
        self.server.keys.add(self.headers.get("authorization"))
        self.rfile.read(int(self.headers["content-length"]))
        time.sleep(self.server.seconds)
        call = {"id": "c1", "type": "function", "function": {"name": "name_colour", "arguments": '{"colour": "white"}'}}
        choice = {
            "finish_reason": "tool_calls",
            "message": {"role": "assistant", "content": None, "tool_calls": [call]},
        }
        body = json.dumps({"choices": [choice]} if self.server.status == 200 else {"error": "no"}).encode()
        self.send_response(self.server.status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def painter() -> Iterator[Painter]:
    with Painter() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_eval_prints_the_table_and_leaves_a_run_folder(
    skyrl: Skyrl, colours: str, painter: Painter, in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYRL_API_KEY", "secret")
    ran = skyrl("eval", "colour-v0", "--registry", colours, "--model", painter.model, "-n", "2", "--k", "1,2")
    assert ran.status == 0, ran.err
    assert "0.333" in ran.out and "pass@2" in ran.out and "6/6" in ran.out
    assert "evaluate 6/6, reward 0.333" in ran.err
    (folder,) = (in_tmp / "runs").iterdir()
    assert folder.name.startswith("eval-colour-v0-painter-")
    assert f"Report: runs/{folder.name}/report.html" in ran.out
    assert len((folder / "trajectories.jsonl").read_text().splitlines()) == 6
    assert (folder / "report.html").read_text().startswith("<!")
    assert painter.keys == {"Bearer secret"}
    assert "secret" not in "".join(file.read_text() for file in folder.iterdir())


def test_view_shows_the_same_table(skyrl: Skyrl, colours: str, painter: Painter, in_tmp: Path) -> None:
    skyrl("eval", "colour-v0", "--registry", colours, "--model", painter.model, "--out", "here")
    Path("here/report.html").unlink()
    ran = skyrl("view", "here", "--report")
    assert ran.status == 0, ran.err
    assert "0.333" in ran.out and "Report: here/report.html" in ran.out
    assert Path("here/report.html").is_file()


def test_a_folder_that_holds_some_is_completed(skyrl: Skyrl, colours: str, painter: Painter, in_tmp: Path) -> None:
    words = ["eval", "colour-v0", "--registry", colours, "--model", painter.model, "--out", "here"]
    assert skyrl(*words).status == 0
    journal = Path("here/trajectories.jsonl")
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:2]))
    asked = painter.asked
    assert skyrl(*words).status == 0
    assert painter.asked == asked + 1
    assert len(journal.read_text().splitlines()) == 3
    other = skyrl(*words, "--temperature", "0.5")
    assert other.status == 2 and "other settings" in other.err


def test_tasks_takes_the_first(skyrl: Skyrl, colours: str, painter: Painter, in_tmp: Path) -> None:
    ran = skyrl("eval", "colour-v0", "--registry", colours, "--model", painter.model, "--tasks", "1")
    assert "1/1" in ran.out and "1.000" in ran.out


def test_nothing_judged_is_a_failed_run(skyrl: Skyrl, colours: str, painter: Painter, in_tmp: Path) -> None:
    fault = ["--set", "fault=infra", "--tasks", "1"]
    ran = skyrl("eval", "colour-v0", "--registry", colours, "--model", painter.model, *fault)
    assert ran.status == 1
    assert "skyrl: no trajectory could be judged: 1 env_error" in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--k", "1,x"], "--k takes numbers like 1,4; got '1,x'"),
        (["--k", "1,4", "-n", "2"], "from 1 to -n (here 2); got 1,4"),
        (["--set", "flaut=infra"], "colour-v0 has no setting 'flaut'; did you mean 'fault'?"),
        (["--split", "dev"], "has the splits train, test; got 'dev'"),
        (["--set", "tasks=nowhere.jsonl"], "no such file or folder of tasks: nowhere.jsonl"),
        (["--temperature", "-1"], "Invalid value for '--temperature'"),
    ],
)
def test_wrong_input_makes_no_folder(
    skyrl: Skyrl, colours: str, painter: Painter, in_tmp: Path, words: list[str], said: str
) -> None:
    ran = skyrl("eval", "colour-v0", "--registry", colours, "--model", painter.model, *words)
    assert ran.status == 2
    assert said in ran.err and ran.err.splitlines()[-1].startswith("skyrl: ")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "is empty"), ('{"id": "x"}\nnot json\n', "task 2 is not JSON"), ("[1]\n", "is not an object")],
)
def test_broken_tasks_are_named(
    skyrl: Skyrl, colours: str, painter: Painter, in_tmp: Path, text: str, said: str
) -> None:
    Path("mine.jsonl").write_text(text)
    own = ["--set", "tasks=mine.jsonl"]
    ran = skyrl("eval", "colour-v0", "--registry", colours, "--model", painter.model, *own)
    assert ran.status == 2
    assert said in ran.err


def test_a_server_that_refuses_is_one_line(skyrl: Skyrl, colours: str, painter: Painter, in_tmp: Path) -> None:
    painter.status = 404
    ran = skyrl("eval", "colour-v0", "--registry", colours, "--model", painter.model, "--tasks", "1")
    assert ran.status == 2
    assert "404" in ran.err.splitlines()[-1]


def test_view_of_no_run_says_what_makes_one(skyrl: Skyrl, in_tmp: Path) -> None:
    ran = skyrl("view", "nowhere")
    assert ran.status == 2 and "nowhere is no run folder" in ran.err


def test_ctrl_c_keeps_what_is_finished(colours: str, painter: Painter, in_tmp: Path) -> None:
    painter.seconds = 0.4
    command = [sys.executable, "-m", "skyrl_gym", "eval", "colour-v0", "--registry", colours, "--model", painter.model]
    command += ["-n", "50", "--concurrency", "1", "--out", "here"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while painter.asked < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "skyrl: interrupted; finished work is kept in here; --out here goes on from there"
    assert len(Path("here/trajectories.jsonl").read_text().splitlines()) >= 2


def test_a_full_disk_is_one_line_and_keeps_what_is_finished(
    skyrl: Skyrl, colours: str, painter: Painter, in_tmp: Path
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6_000, limits[1]))
    try:
        words = ["--registry", colours, "--model", painter.model, "--out", "here", "--concurrency", "1"]
        ran = skyrl("eval", "colour-v0", *words, "-n", "20")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert ran.status == 2
    assert "can't write the journal here/trajectories.jsonl" in ran.err
    kept = Path("here/trajectories.jsonl").read_text().splitlines()
    assert kept and all(json.loads(line)["reward"] is not None for line in kept)


def test_view_serves_a_page_until_it_is_interrupted(skyrl: Skyrl, colours: str, painter: Painter, in_tmp: Path) -> None:
    skyrl("eval", "colour-v0", "--registry", colours, "--model", painter.model, "--out", "here")
    command = [sys.executable, "-m", "skyrl_gym", "view", "here", "here", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "here and here at http://127.0.0.1:" in line
        page = httpx.get(line.split(" at ")[1].split()[0])
        assert page.status_code == 200 and "colour-v0" in page.text
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
