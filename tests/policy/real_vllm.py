"""Real vLLM servers on the CPU, for tests of several folders."""

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "vllm-cpu"
HOME = Path(os.environ.get("SKYRL_VLLM_HOME", Path.home() / ".cache" / "skyrl_gym" / "vllm"))
START_S = 900  # on a busy machine; a minute on an idle one

NEEDED = [
    pytest.mark.slow,
    pytest.mark.timeout(3_600),
    pytest.mark.skipif(not (HOME / "installed").exists(), reason=f"no vLLM in {HOME}: `make test-vllm` brings it"),
    pytest.mark.filterwarnings("default"),
]
"""The marks of each such test."""


class RealVllm:
    """One server process and its address, which it keeps when it is started again."""

    def __init__(self, model: Path, log: Path, *options: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._command = ["nice", "-n", "5", str(SCRIPT), "serve", str(model), "--port", str(self.port), *options]
        self._log = log

    def start(self) -> None:
        """Begins to load; `wait` waits for it."""
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                start_new_session=True,
            )  # fmt: skip

    def wait(self) -> None:
        until = time.monotonic() + START_S
        while time.monotonic() < until and self.process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health"):
                return
            time.sleep(0.5)
        self.kill()
        pytest.fail(f"vLLM did not start: {self._log.read_text()[-2_000:]}")

    def kill(self) -> None:
        """SIGKILL to the server and its workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
