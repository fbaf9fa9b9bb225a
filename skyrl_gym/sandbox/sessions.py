"""Commands in a sandbox by way of one long-lived process there, far quicker than an entry for each.

A session is a bash in the sandbox that takes requests from its stdin: run a program, or kill the processes that
bear a mark. Texts are framed by NULs, a program's stdin by its length. Its answers come between marks that hold a
nonce. What a request is made of never stands in an argument list.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import struct
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Literal

from skyrl_gym.errors import SandboxLost
from skyrl_gym.sandbox.output import CappedOutput, MarkedStream
from skyrl_gym.sandbox.running import Pipes

__all__ = ["MARK", "SESSION_COMMAND", "SESSION_ENV", "ExecStream", "Session"]

MARK = "SKYRL_COMMAND"
# As everywhere: "+" marks the beginning, the exit status the end.
_SERVER = r"""
exec 200<&0 201>&1 </dev/null >/dev/null 2>&1
program() (
  count=$1
  shift
  while [ "$count" -gt 0 ]; do export "$1"; shift; count=$((count - 1)); done
  exec >&201 2>&1 200<&- 201>&-
  if [ "$1 $2" != 'sh -c' ]; then exec "$@"; fi
  script=$3 # needs no other shell than this one
  shift 4
  eval "$script"
)
run() {
  local size=$1
  shift
  if [ "$size" = 0 ]; then
    program "$@"
    code=$?
    return
  fi
  head -c "$size" <&200 | {
    program "$@"
    code=$?
    IFS= read -r -N 1 rest && cat >/dev/null # what it did not read
    exit "$code"
  }
  code=${PIPESTATUS[1]}
}
# Sets `state` and `parent` of a process.
look() {
  local line
  read -r line < "/proc/$1/stat" || return
  line=${line##*) }
  state=${line%% *}
  line=${line#* }
  parent=${line%% *}
}
marked() {
  local path item
  found=()
  for path in /proc/[0-9]*; do
    while IFS= read -r -d '' item; do
      case $item in "$1"*) found+=("${path#/proc/}"); break ;; esac
    done < "$path/environ"
  done
}
# A shell is the child of nobody in here, its driver is its child.
sweep() {
  local mark=$1 spare=$2 round pid state parent top=0 old=' ' doomed
  if [ "$spare" != nothing ]; then
    marked "$mark"
    for pid in "${found[@]}"; do look "$pid" && [ "$parent" = 0 ] && top=$pid; done
    for pid in "${found[@]}"; do look "$pid" && [ "$parent" = "$top" ] && old+="$pid "; done
  fi
  for ((round = 0; round < 100; round++)); do
    doomed=()
    marked "$mark"
    for pid in "${found[@]}"; do
      look "$pid" || continue
      case $state in Z | X) continue ;; esac
      if [ "$spare" != nothing ]; then
        [ "$pid" = "$top" ] && continue
        if [ "$parent" = "$top" ]; then
          [ "$spare" = driver ] && continue
          case $old in *" $pid "*) ;; *) continue ;; esac
        fi
      fi
      doomed+=("$pid")
    done
    [ "${#doomed[@]}" -gt 0 ] || return 0
    kill -STOP "${doomed[@]}"
    kill -KILL "${doomed[@]}"
  done
  return 1
}
while IFS= read -r -d '' -u 200 nonce && IFS= read -r -d '' -u 200 length; do
  words=()
  while [ "${#words[@]}" -lt "$length" ] && IFS= read -r -d '' -u 200 word; do words+=("$word"); done
  printf '\001%s +\001' "$nonce" >&201
  code=0
  case ${words[0]} in
    run) run "${words[@]:1}" ;;
    sweep) sweep "${words[@]:1}" || code=1 ;;
  esac
  printf '\001%s %d\001' "$nonce" "$code" >&201
done
"""
SESSION_COMMAND = ["bash", "--norc", "--noprofile", "-c", 'server=$SKYRL_SESSION; unset SKYRL_SESSION; eval "$server"']
# In the list of processes it would be in the way, and a pipe is read byte by byte.
SESSION_ENV = {"SKYRL_SESSION": _SERVER}
_HEADER = struct.Struct(">BxxxL")
Spared = Literal["nothing", "supervisor", "driver"]


class ExecStream:
    """The stdin and output of a process in a container, over the daemon's socket: frames with a header each."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._left = 0

    def write(self, data: bytes) -> None:
        """To its stdin."""
        self._writer.write(data)

    async def drain(self) -> None:
        """Waits until there is room for more."""
        await self._writer.drain()

    async def read(self, n: int) -> bytes:
        """Some of its output; nothing once it has ended."""
        try:
            while self._left == 0:
                self._left = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))[1]
            data = await self._reader.read(min(n, self._left))
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""
        self._left -= len(data)
        return data

    async def close(self) -> None:
        """The process reads the end of its stdin."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class Session:
    """One request at a time; `began` tells whether the last one was taken up.

    Args:
        pipes: of a process that was started by `SESSION_COMMAND` with `SESSION_ENV`.
        close: ends that process.
    """

    def __init__(self, pipes: Pipes, close: Callable[[], Coroutine[object, object, None]]) -> None:
        self._stdin = pipes.stdin
        self._marks = MarkedStream(pipes.stdout.read)
        self.began = False
        self.close = close

    async def run(self, command: Sequence[str], env: Mapping[str, str], stdin: bytes, output: CappedOutput) -> int:
        """The exit status of a program.

        Raises:
            SandboxLost: the session's process is gone.
        """
        assignments = [f"{name}={value}" for name, value in env.items()]
        words = ["run", str(len(stdin)), str(len(assignments)), *assignments, *command]
        return await self._ask(words, stdin, output)

    async def sweep(self, mark: str, spare: Spared) -> None:
        """Kills the processes whose environment holds the mark, as often as it takes.

        Args:
            mark: what an assignment in the environment begins with.
            spare: of a shell, its supervisor, or its driver too.

        Raises:
            SandboxLost: the session's process is gone.
        """
        await self._ask(["sweep", mark, spare], b"", CappedOutput(2))

    async def _ask(self, words: Sequence[str], data: bytes, output: CappedOutput) -> int:
        self.began = False
        nonce = secrets.token_hex(8)
        frames = "".join(f"{word}\0" for word in (nonce, str(len(words)), *words))
        sending = asyncio.create_task(self._send(frames.encode(errors="replace") + data))
        try:
            left = CappedOutput(500)  # by what ran before
            while await self._next(nonce, left) != "+":
                continue
            self.began = True
            while (word := await self._next(nonce, output)) == "+":
                continue
            return int(word)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self._stdin.write(data)
            await self._stdin.drain()

    async def _next(self, nonce: str, output: CappedOutput) -> str:
        mark = await self._marks.until({nonce}, output)
        if mark is None:
            said = output.value().decode(errors="replace").strip()
            raise SandboxLost(f"a session in the sandbox has ended: {said[-500:]}")
        return mark.word
