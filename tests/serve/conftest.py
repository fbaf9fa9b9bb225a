"""Real servers on free ports, each in a thread of this process."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

uvicorn = pytest.importorskip("uvicorn")


class Running:
    """One server; `url` once it listens."""

    def __init__(self, app: Any) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=2, lifespan="on")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive()
            time.sleep(0.01)

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()
        self.socket.close()


@pytest.fixture
def serve() -> Iterator[Callable[[Any], Running]]:
    running: list[Running] = []

    def start(app: Any) -> Running:
        running.append(Running(app))
        return running[-1]

    yield start
    for server in running:
        with closing(server):
            pass
