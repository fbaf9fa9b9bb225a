"""A server is started on a port of its own, and is gone afterwards, whatever happened."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from skyrl_gym.errors import ConfigError, MissingDependency, PolicyError
from skyrl_gym.policy.serving import served

# Stands in for `vllm`: notes its pid and its words, may fail as its mode file says, has a worker of its own.
VLLM = """#!{python}
import http.server, json, os, subprocess, sys, time
here = os.path.dirname(os.path.abspath(__file__))
words = sys.argv[1:]
mode = open(here + "/mode").read().split()
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(here + "/started", "a") as file:
    file.write(json.dumps({{"pids": [os.getpid(), worker.pid], "words": words}}) + "\\n")
if mode:
    open(here + "/mode", "w").write(" ".join(mode[1:]))
    if mode[0] == "taken":
        sys.exit("OSError: [Errno 98] Address already in use")
    if mode[0] == "crashed":
        print("may `OSError: x`\\nx RuntimeError: no memory\\nEngineDeadError: see above\\nRuntimeError: no memory")
        sys.exit("bye\\n" * 200)
    if mode[0] == "broken":
        sys.exit("ValueError: no such model")
print("RuntimeError: it was told", flush=True)
names = words[words.index("--served-model-name") + 1:]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({{"data": [{{"id": name}} for name in names]}}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
http.server.HTTPServer(("127.0.0.1", int(words[words.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "vllm"
    program.write_text(VLLM.format(python=sys.executable))
    program.chmod(0o755)
    (tmp_path / "mode").write_text("")
    monkeypatch.setenv("SKYRL_VLLM", str(program))
    return tmp_path


def started(folder: Path) -> list[dict[str, list[int]]]:
    import json

    return [json.loads(line) for line in (folder / "started").read_text().splitlines()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def all_gone(folder: Path) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not any(is_alive(pid) for start in started(folder) for pid in start["pids"]):
            return True
        time.sleep(0.05)
    return False


def test_it_answers_while_it_is_needed_and_its_workers_go_with_it(vllm: Path) -> None:
    told: list[str] = []
    with served("some/model --max-model-len 4096", told.append) as address:
        base, _, model = address.partition("#")
        assert model == "some/model" and told == ["vLLM is loading some/model"]
        assert httpx.get(f"{base}/models").json()["data"][0]["id"] == "some/model"
        (start,) = started(vllm)
        assert start["words"][:4] == ["serve", "some/model", "--max-model-len", "4096"]
    assert all_gone(vllm)


def test_a_port_that_was_lost_is_replaced(vllm: Path) -> None:
    (vllm / "mode").write_text("taken taken")
    with served("some/model"):
        ports = [start["words"][start["words"].index("--port") + 1] for start in started(vllm)]
        assert len(ports) == 3
    assert all_gone(vllm)


def test_a_server_that_can_not_start_tells_why_and_is_not_tried_again(vllm: Path) -> None:
    (vllm / "mode").write_text("broken")
    with pytest.raises(PolicyError, match="did not start: ValueError: no such model"), served("some/model"):
        pass
    assert len(started(vllm)) == 1 and all_gone(vllm)


def test_what_went_wrong_is_told_also_where_more_was_said_after_it(vllm: Path) -> None:
    (vllm / "mode").write_text("crashed")
    with pytest.raises(PolicyError) as found, served("some/model"):
        pass
    assert str(found.value) == "vLLM did not start: RuntimeError: no memory; EngineDeadError: see above"


def test_a_server_that_ends_ends_what_needs_it_and_tells_why(vllm: Path) -> None:
    """Nobody starts it again, so that waiting for it would be for nothing."""

    async def wait() -> None:
        os.kill(started(vllm)[0]["pids"][0], signal.SIGKILL)
        await asyncio.sleep(60)

    begun = time.monotonic()
    with pytest.raises(PolicyError, match="vLLM ended: RuntimeError: it was told"), served("some/model"):
        asyncio.run(wait())
    assert time.monotonic() - begun < 50 and all_gone(vllm)


def test_an_error_inside_frees_it(vllm: Path) -> None:
    with pytest.raises(KeyboardInterrupt), served("some/model"):
        raise KeyboardInterrupt
    assert all_gone(vllm)


def test_a_killed_parent_frees_it(vllm: Path) -> None:
    code = (
        "import time\nfrom skyrl_gym.policy.serving import served\n"
        "with served('some/model') as address:\n    print(address, flush=True)\n    time.sleep(600)"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as parent:
        assert parent.stdout is not None and parent.stdout.readline().startswith("http://127.0.0.1:")
        parent.send_signal(signal.SIGKILL)
    assert all_gone(vllm)


def test_without_a_program_the_way_to_get_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKYRL_VLLM", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    if Path(sys.executable).with_name("vllm").exists():
        pytest.skip("vLLM is installed here")
    with pytest.raises(MissingDependency, match="pip install vllm"), served("some/model"):
        pass
    with pytest.raises(ConfigError, match="--serve takes a model"), served("--port 3"):
        pass
