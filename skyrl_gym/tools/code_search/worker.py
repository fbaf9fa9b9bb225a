"""The process that parses: files that nobody vouches for stay out of the process that plays the episodes.

It reads a line of JSON (what to do, and the language and size of each file) and then the files' bytes, and answers in
a line of JSON, with each file's facts or faults.
It ends when its socket does, or after ten minutes without work.
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

IDLE_S = 600.0
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


def _done(order: dict[str, Any], stream: BinaryIO) -> list[Any]:
    files = [(language, stream.read(size)) for language, size in order["files"]]
    if order["work"] == "faults":
        return [find_faults(language, data) for language, data in files]
    return [scan(language, data).to_json() for language, data in files]
