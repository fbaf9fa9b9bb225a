"""Parsing in processes of their own: what hangs or crashes one takes neither an episode nor the event loop along."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, TypeAlias

from skyrl_gym.tools.code_search.facts import FileFacts
from skyrl_gym.tools.code_search.faults import Fault
from skyrl_gym.tools.code_search.languages import load_grammar

__all__ = ["MAX_FILE_BYTES", "Parsers", "default_parsers"]

MAX_FILE_BYTES = 1 << 20
"""Of a file that is parsed: what is longer is generated."""
FILE_S = 5.0
BATCH_BYTES = 1 << 18
MAX_ANSWER = 1 << 26
_CHUNK = 1 << 18
_RUN = """
import importlib.util, json, sys
sys.path[:] = json.loads(sys.argv[1])
for name in json.loads(sys.argv[2]):  # without what a package loads for those who use all of it
    sys.modules[name] = importlib.util.module_from_spec(importlib.util.find_spec(name))
from skyrl_gym.tools.code_search.worker import main
main()
"""
_PACKAGES = ("skyrl_gym", "skyrl_gym.tools", "skyrl_gym.tools.code_search")
File: TypeAlias = tuple[str, bytes]
"""A language, and the bytes."""


class Parsers:
    """A few parsing processes, begun when needed. Its methods block; call them in a thread. Any thread may.

    Args:
        count: at most so many processes.
        file_s: seconds for one file, or for some small ones; a process that takes longer is killed.
    """

    def __init__(self, count: int | None = None, file_s: float = FILE_S) -> None:
        self._file_s = file_s
        self._free = threading.Semaphore(count or max(1, min(4, (os.cpu_count() or 1) // 2)))
        self._lock = threading.Lock()
        self._idle: list[_Process] = []

    def scan(self, files: Sequence[File]) -> list[FileFacts]:
        """The facts of each file; none but the language of one that can't be parsed in time.

        Raises:
            MissingDependency: a grammar is not installed.
        """
        facts = [FileFacts(language) for language, _ in files]
        for numbers in _batches(files):
            answers = self._ask("scan", [files[number] for number in numbers])
            for number, answer in zip(numbers, answers, strict=True):
                with contextlib.suppress(ValueError):
                    facts[number] = FileFacts.from_json(answer) if isinstance(answer, dict) else facts[number]
        return facts

    def faults(self, language: str, data: bytes) -> list[Fault]:
        """Where a file is wrong in its syntax; none too if that can't be told in time.

        Raises:
            MissingDependency: the grammar is not installed.
        """
        (answer,) = self._ask("faults", [(language, data)])
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

    def _ask(self, work: str, files: Sequence[File]) -> list[Any]:
        """An answer for each file; None for one that is too large or takes too long, or of which the process died."""
        fit = all(len(data) <= MAX_FILE_BYTES for _, data in files)
        answers = self._answers(work, files) if fit else None
        if answers is None:
            return [None] if len(files) == 1 else [answer for file in files for answer in self._ask(work, [file])]
        return answers

    def _answers(self, work: str, files: Sequence[File]) -> list[Any] | None:
        """Of one process; None if it took too long, or died."""
        with self._free:
            process = self._take({language for language, _ in files})
            try:
                answers = process.ask(work, files)
            except (OSError, ValueError):
                process.end()
                return None
            except BaseException:
                process.end()
                raise
            with self._lock:
                self._idle.append(process)
            return answers

    def _take(self, languages: Iterable[str]) -> _Process:
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.lives:
                    return process
                process.end()
        for language in languages:
            load_grammar(language)  # raises here what would only be a dead process there
        return _Process(self._file_s)


@cache
def default_parsers() -> Parsers:
    """Those of this process."""
    parsers = Parsers()
    atexit.register(parsers.close)
    return parsers


def _batches(files: Sequence[File]) -> Iterator[list[int]]:
    """The numbers of files that go to a process together: small ones, so that it is not asked for each."""
    batch: list[int] = []
    size = 0
    for number, (_, data) in enumerate(files):
        if batch and size + len(data) > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(number)
        size += len(data)
    if batch:
        yield batch


class _Process:
    def __init__(self, file_s: float) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(file_s)
        # Isolated, with the same places to import from, and nothing of this process's environment.
        places = json.dumps([path for path in sys.path if path])
        command = [sys.executable, "-I", "-c", _RUN, places, json.dumps(_PACKAGES)]
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

    def ask(self, work: str, files: Sequence[File]) -> list[Any]:
        """Raises OSError when the process is gone or late, ValueError when what it says is no answer."""
        order = {"work": work, "files": [(language, len(data)) for language, data in files]}
        self._socket.sendall(b"".join((json.dumps(order).encode(), b"\n", *(data for _, data in files))))
        chunks: list[bytes] = []
        size = 0
        while not chunks or not chunks[-1].endswith(b"\n"):
            chunk = self._socket.recv(_CHUNK)
            size += len(chunk)
            if not chunk or size > MAX_ANSWER:
                raise ConnectionError("the parsing process ended or says too much")
            chunks.append(chunk)
        answers = json.loads(b"".join(chunks))
        if not isinstance(answers, list) or len(answers) != len(files):
            raise ValueError(f"no answer for each of {len(files)} files")
        return answers

    def end(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()
