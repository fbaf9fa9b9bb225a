"""The process that parses: files that nobody vouches for stay out of the process that plays the episodes.

It reads a line of JSON (the language, how many bytes) and then the bytes, and answers with the facts in a line of JSON.
It ends when its socket does, or after a minute without work.
"""

from __future__ import annotations

import gc
import json
import resource
import socket
import sys
from typing import Any, BinaryIO

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
                answer = json.dumps(_scanned(json.loads(order), stream), separators=(",", ":"))
                connection.sendall(answer.encode() + b"\n")
        except (TimeoutError, ConnectionError):
            pass


def _scanned(order: dict[str, Any], stream: BinaryIO) -> dict[str, Any]:
    return scan(order["language"], stream.read(order["size"])).to_json()
