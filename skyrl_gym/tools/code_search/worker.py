"""The process that parses: files that nobody vouches for stay out of the process that plays the episodes.

It reads a line of JSON (what to do, the language, how many bytes) and then the bytes, and answers in a line of JSON,
with the file's facts or its faults.
It ends when its socket does, or after a minute without work.
"""

from __future__ import annotations

import gc
import json
import resource
import socket
import sys
from typing import Any, BinaryIO

from skyrl_gym.tools.code_search.faults import find_faults
from skyrl_gym.tools.code_search.scan import scan

__all__ = ["main"]

IDLE_S = 60.0
MEMORY_BYTES = 1 << 30


def main() -> None:
    """Serves the socket that is its standard input."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    gc.disable()  # nothing here has cycles
    connection = socket.socket(fileno=sys.stdin.fileno())
    connection.settimeout(IDLE_S)
    with connection, connection.makefile("rb") as stream:
        try:
            while order := stream.readline():
                answer = json.dumps(_done(json.loads(order), stream), separators=(",", ":"))
                connection.sendall(answer.encode() + b"\n")
        except (TimeoutError, ConnectionError):
            pass


def _done(order: dict[str, Any], stream: BinaryIO) -> Any:
    data = stream.read(order["size"])
    if order["work"] == "faults":
        return find_faults(order["language"], data)
    return scan(order["language"], data).to_json()
