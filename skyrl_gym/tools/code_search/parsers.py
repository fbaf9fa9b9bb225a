"""Parsing in processes of their own: what hangs or crashes one takes neither an episode nor the event loop along."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
from functools import cache
from typing import Any

from skyrl_gym.tools.code_search.facts import FileFacts
from skyrl_gym.tools.code_search.faults import Fault
from skyrl_gym.tools.code_search.languages import load_grammar

__all__ = ["MAX_FILE_BYTES", "Parsers", "default_parsers"]

MAX_FILE_BYTES = 1 << 20
"""Of a file that is parsed: what is longer is generated."""
FILE_S = 5.0
MAX_ANSWER = 1 << 26
_CHUNK = 1 << 18
_RUN = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from skyrl_gym.tools.code_search.worker import main
main()
"""


class Parsers:
    """A few parsing processes, begun when needed. Its methods block; call them in a thread. Any thread may.

    Args:
        count: at most so many processes.
        file_s: seconds for one file; a process that takes longer is killed.
    """

    def __init__(self, count: int | None = None, file_s: float = FILE_S) -> None:
        self._file_s = file_s
        self._free = threading.Semaphore(count or max(1, min(4, (os.cpu_count() or 1) // 2)))
        self._lock = threading.Lock()
        self._idle: list[_Process] = []

    def scan(self, language: str, data: bytes) -> FileFacts:
        """The facts of a file; none but the language if it can't be parsed in time.

        Raises:
            MissingDependency: the grammar is not installed.
        """
        answer = self._ask("scan", language, data)
        try:
            return FileFacts.from_json(answer) if isinstance(answer, dict) else FileFacts(language)
        except ValueError:
            return FileFacts(language)

    def faults(self, language: str, data: bytes) -> list[Fault]:
        """Where a file is wrong in its syntax; none too if that can't be told in time.

        Raises:
            MissingDependency: the grammar is not installed.
        """
        answer = self._ask("faults", language, data)
        try:
            return [Fault(int(first), int(last), str(text)) for first, last, text in answer or ()]
        except (TypeError, ValueError):
            return []

    def close(self) -> None:
        """Ends the processes; the next call begins new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()

    def _ask(self, work: str, language: str, data: bytes) -> Any:
        """The answer; None if there is none: the file is too large or takes too long, or the process died of it."""
        if len(data) > MAX_FILE_BYTES:
            return None
        with self._free:
            process = self._take(language)
            try:
                answer = process.ask({"work": work, "language": language, "size": len(data)}, data)
            except (OSError, ValueError):
                process.end()
                return None
            except BaseException:
                process.end()
                raise
            with self._lock:
                self._idle.append(process)
            return answer

    def _take(self, language: str) -> _Process:
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.lives:
                    return process
                process.end()
        load_grammar(language)  # raises here what would only be a dead process there
        return _Process(self._file_s)


@cache
def default_parsers() -> Parsers:
    """Those of this process."""
    parsers = Parsers()
    atexit.register(parsers.close)
    return parsers


class _Process:
    def __init__(self, file_s: float) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(file_s)
        # Isolated, with the same places to import from, and nothing of this process's environment.
        command = [sys.executable, "-I", "-c", _RUN, json.dumps([path for path in sys.path if path])]
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=dict[str, str](),
            )

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def ask(self, order: dict[str, Any], data: bytes) -> Any:
        """Raises OSError when the process is gone or late, ValueError when what it says is no answer."""
        self._socket.sendall(json.dumps(order).encode() + b"\n" + data)
        chunks: list[bytes] = []
        size = 0
        while not chunks or not chunks[-1].endswith(b"\n"):
            chunk = self._socket.recv(_CHUNK)
            size += len(chunk)
            if not chunk or size > MAX_ANSWER:
                raise ConnectionError("the parsing process ended or says too much")
            chunks.append(chunk)
        return json.loads(b"".join(chunks))

    def end(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()
