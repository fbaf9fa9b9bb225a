"""A vLLM server started for one command, and freed whatever becomes of it."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import httpx

from skyrl_gym.errors import ConfigError, MissingDependency, PolicyError
from skyrl_gym.policy.models import resolve_model

__all__ = ["served", "vllm_program"]

STARTS = 5
START_S = 1_800.0
POLL_S = 0.25
STOP_S = 15.0
REASON = 600  # characters
TAKEN = ("address already in use", "errno 98")

_ERROR = re.compile(r"(?<![\w`])\w+(?:Error|Exception): .+")  # in backticks: of a warning that speaks of errors

# Holds the server: when its stdin closes, which a killed parent does too, the server's whole group ends. The group is
# signalled before its leader is reaped, while the number can't belong to anybody else.
_GUARD = f"""
import os, signal, subprocess, sys, threading, time
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)
def end(number):
    try:
        os.killpg(server.pid, number)
    except ProcessLookupError:
        pass
def watch():
    os.read(0, 1)
    end(signal.SIGTERM)
    time.sleep({STOP_S})
    end(signal.SIGKILL)
threading.Thread(target=watch, daemon=True).start()
os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
end(signal.SIGKILL)
sys.exit(min(abs(server.wait()), 255))
"""


@contextmanager
def served(
    words: str, say: Callable[[str], None] = lambda text: None, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Starts `vllm serve WORDS` on a free port and gives "http://127.0.0.1:PORT/v1#MODEL".

    Args:
        words: a model, and options of `vllm serve` behind it.
        say: told what is being waited for.
        environment: of the server; that of this process unless given.

    Raises:
        MissingDependency: vLLM is not there.
        PolicyError: the server did not start, or ended before the block; the message has the errors of its log.
    """
    model, *options = shlex.split(words) or [""]
    if not model or model.startswith("-"):
        raise ConfigError(f"--serve takes a model, and options of `vllm serve` behind it; got {words!r}")
    program, source = vllm_program(), resolve_model(model)
    with tempfile.TemporaryFile() as log:
        for _ in range(STARTS):
            # The port may be taken between here and there: then the server fails to bind, and gets another.
            port, mark = _free_port(), f"skyrl-{secrets.token_hex(8)}"
            names = ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", model, mark]
            with _guarded([*program, "serve", str(source), *options, *names], log, environment) as guard:
                say(f"vLLM is loading {model}")
                if _is_up(guard, f"http://127.0.0.1:{port}/v1", mark):
                    with _no_longer_than(guard, log):
                        yield f"http://127.0.0.1:{port}/v1#{model}"
                    return
            said = _read(log)
            if not any(sign in said.lower() for sign in TAKEN):
                raise PolicyError(f"vLLM did not start: {_reason(said)}")
            log.truncate(0)
    raise PolicyError(f"vLLM found no free port in {STARTS} tries")


def vllm_program() -> list[str]:
    """How vLLM is called: `$SKYRL_VLLM`, for one in an environment of its own, or the `vllm` that is installed.

    Raises:
        MissingDependency: there is neither.
    """
    if given := os.environ.get("SKYRL_VLLM"):
        return shlex.split(given)
    beside = Path(sys.executable).with_name("vllm")
    found = str(beside) if beside.is_file() else shutil.which("vllm")
    if found is None:
        raise MissingDependency(
            "vLLM is not installed; give it an environment of its own and name its program: "
            "python3 -m venv vllm && vllm/bin/pip install vllm && export SKYRL_VLLM=vllm/bin/vllm"
        )
    return [found]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _guarded(
    command: list[str], log: IO[bytes], environment: Mapping[str, str] | None
) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-I", "-c", _GUARD, *command]
    guard = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True, env=environment
    )
    try:
        yield guard
    finally:
        if guard.stdin is not None:
            with suppress(OSError):
                guard.stdin.close()
        guard.wait()


def _is_up(guard: subprocess.Popen[bytes], address: str, mark: str) -> bool:
    """Waits until this very server answers; False when it ended instead.

    Raises:
        PolicyError: it did neither.
    """
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if guard.poll() is not None:
            return False
        with suppress(httpx.HTTPError, ValueError, KeyError, TypeError):
            models = httpx.get(f"{address}/models", timeout=5).json()["data"]
            if mark in {model["id"] for model in models}:  # another's server could answer on a port lost to it
                return True
        time.sleep(POLL_S)
    raise PolicyError(f"vLLM gave no answer within {START_S:g} s")


@contextmanager
def _no_longer_than(guard: subprocess.Popen[bytes], log: IO[bytes]) -> Iterator[None]:
    """Ends the block with the server: whoever asks it would wait for one that nobody starts again.

    Raises:
        PolicyError: the server ended first. It interrupts only a block of the main thread.
    """
    over = threading.Event()

    def watch() -> None:
        guard.wait()
        if not over.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    except KeyboardInterrupt:
        if guard.poll() is None:
            raise
        raise PolicyError(f"vLLM ended: {_reason(_read(log))}") from None
    finally:
        over.set()


def _read(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode(errors="replace")


def _reason(said: str) -> str:
    """The errors of a log, each once: its end is seldom what went wrong. Where there are none, its end."""
    errors = "; ".join(dict.fromkeys(_ERROR.findall(said)))
    return errors[:REASON] or said[-REASON:].strip() or "it said nothing"
