"""`skyrl gateway`: agents are run on an environment against a model behind a server, and a run folder is left."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from skyrl_gym.evaluate import open_run

AGENT = """
import json, os, sys, urllib.request
def post(url, body):
    return json.load(urllib.request.urlopen(urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json"})))
task = json.load(sys.stdin)
base, session = os.environ["OPENAI_BASE_URL"], os.environ["SKYRL_SESSION_URL"]
answer = post(base + "/chat/completions", {"messages": task["messages"], "tools": task["tools"]})
post(session + "/call", {"name": "answer", "arguments": {"text": answer["choices"][0]["message"]["content"]}})
"""


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        choice = {"finish_reason": "stop", "message": {"role": "assistant", "content": "42"}}
        body = json.dumps({"choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def model() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1#sage"
        server.shutdown()
        thread.join()


def test_agents_leave_a_run_folder_that_is_added_to(model: str, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    command = [sys.executable, "-m", "skyrl_gym", "gateway", "skyrl/memory-v0", "--model", model]
    command += ["--agent", f"{sys.executable} {tmp_path / 'agent.py'}", "--tasks", "2", "-n", "2", "--out", "here"]
    for times in (1, 2):
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
        assert ran.returncode == 0, ran.stderr
        assert f"{4 * times}/{4 * times}" in ran.stdout and "Report: here/report.html" in ran.stdout
    run = open_run(tmp_path / "here")
    assert run.summary is not None and run.summary.judged == 8
    held = list(run.trajectories())
    assert sorted(t.sample for t in held) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert all(t.turns[0].message.text == "42" and t.policy == "sage" for t in held)
    other = subprocess.run(
        [*command, "--temperature", "0.5"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert other.returncode == 2 and "other settings (sampling)" in other.stderr


def test_agents_that_all_fail_are_no_result(model: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "skyrl_gym", "gateway", "skyrl/memory-v0", "--model", model]
    command += ["--agent", "echo lost >&2; exit 3", "--tasks", "1", "--out", "here"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 1 and "no trajectory could be judged: 1 env_error" in ran.stderr
    (lost,) = open_run(tmp_path / "here").trajectories()
    assert lost.error is not None and lost.error.message == "the agent exited with 3: lost"
