"""A persistent bash behind pipes, its commands framed by nonces.

A supervisor bash holds the control pipes on descriptors that commands never see, and starts a driver bash
which evaluates one command after another. A command that ends its shell (`exit`, `exec`, `kill -9 $$`) costs
that shell's state; the supervisor starts a new driver. Commands read an empty stdin. What a background job
prints after its command has ended appears with the next command.

Not promised: a command can imitate the end marker of its own run. Nothing that grades may use this shell.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

from skyrl_gym.errors import SandboxLost
from skyrl_gym.sandbox.base import ExecResult, ExecStatus
from skyrl_gym.sandbox.output import CappedOutput, MarkedStream
from skyrl_gym.sandbox.running import Pipes, uninterrupted

__all__ = ["DRIVER_ENV", "SHELL_COMMAND", "PipeShell", "RestartingShell"]

# "+" marks the beginning of a command, its exit status the end.
_DRIVER = r"""
while IFS= read -r -d '' -u 200 __n && IFS= read -r -d '' -u 200 __c; do
  printf '\001%s +\001' "$__n" >&201
  eval "$__c" </dev/null >&201 2>&201 200<&- 201>&-
  printf '\001%s %d\001' "$__n" "$?" >&201
done
exit 111
"""
_SUPERVISOR = r"""
trap '' INT TERM HUP
driver=$SKYRL_SHELL_DRIVER
unset SKYRL_SHELL_DRIVER
IFS= read -r -d '' secret
exec 200<&0 201>&1 </dev/null >/dev/null 2>&1
lost=0
while [ "$lost" -lt 3 ]; do
  began=$SECONDS
  bash --norc --noprofile -c "$driver"
  code=$?
  # 111: the driver could not read. Either its command closed its descriptors, or the other end is gone.
  if [ "$code" = 111 ] && [ $((SECONDS - began)) -lt 1 ]; then lost=$((lost + 1)); else lost=0; fi
  printf '\001%s %d\001' "$secret" "$code" >&201
done
"""
SHELL_COMMAND = ["bash", "--norc", "--noprofile", "-c", _SUPERVISOR]
DRIVER_ENV = {"SKYRL_SHELL_DRIVER": _DRIVER}
GRACE_S = 1.0
REPLACEMENTS = 3
REPLACE_S = 10.0  # to answer to `true`
OUTPUT_LIMIT = 64 * 1_048_576


class _End(NamedTuple):
    """How a command ended: its exit status, whether it took its shell along, and whether one died before it."""

    code: int | None
    shell_exited: bool
    restarted: bool


class PipeShell:
    """Runs commands one at a time.

    Args:
        pipes: the supervisor's stdin and output.
        sweep: kills what the supervisor started; spares its child, the driver, when told to.
        end: kills all of it.
    """

    def __init__(
        self,
        pipes: Pipes,
        sweep: Callable[[bool], Awaitable[None]],
        end: Callable[[], Coroutine[object, object, None]],
    ) -> None:
        self.end = end
        self.lost = False
        self._stdin = pipes.stdin
        self._marks = MarkedStream(pipes.stdout.read)
        self._sweep = sweep
        self._secret = secrets.token_hex(8)
        self._greeted = False

    async def run(self, command: str, *, timeout_s: float, max_bytes: int) -> ExecResult:
        """Runs one command line; see `Shell.run`. When it is cancelled or sets `lost`, the shell is to be ended."""
        began = time.monotonic()
        output = CappedOutput(max_bytes)
        flooded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        reading = asyncio.create_task(self._converse(command, output, flooded))
        status: ExecStatus = "ok"
        try:
            either: set[asyncio.Future[Any]] = {reading, flooded}
            await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                status = "output_limit" if flooded.done() else "timeout"
                await self._kill_command(reading)
            end = await reading
        except SandboxLost:
            self.lost = True
            end = _End(None, shell_exited=True, restarted=True)
        finally:
            reading.cancel()
        code = None if status == "timeout" else end.code
        if end.shell_exited and status == "ok":
            status = "shell_exited"
        return ExecResult(
            output.value(), code, status, time.monotonic() - began, output.dropped, restarted=end.restarted
        )

    async def _converse(self, command: str, output: CappedOutput, flooded: asyncio.Future[None]) -> _End:
        nonce = secrets.token_hex(8)
        await self._send(nonce, command)
        return await self._read(nonce, output, flooded)

    async def _send(self, nonce: str, command: str) -> None:
        data = f"{nonce}\0{command.replace(chr(0), '')}\0".encode(errors="replace")
        if not self._greeted:
            data = f"{self._secret}\0".encode() + data
            self._greeted = True
        try:
            self._stdin.write(data)
            await self._stdin.drain()
        except (BrokenPipeError, ConnectionResetError) as error:
            raise SandboxLost("the sandbox's shell is gone") from error

    async def _read(self, nonce: str, output: CappedOutput, flooded: asyncio.Future[None]) -> _End:
        """Reads up to the command's end marker; past the output limit it goes on, only counting."""

        def watch() -> None:
            if output.total > OUTPUT_LIMIT and not flooded.done():
                flooded.set_result(None)

        began = restarted = False
        while mark := await self._marks.until({nonce, self._secret}, output, told=watch):
            exited = mark.nonce == self._secret
            restarted = restarted or exited
            if mark.word == "+":
                began = True
            elif began:  # else it tells of a driver that died before this command came
                return _End(int(mark.word), exited, restarted)
        raise SandboxLost("the shell's supervisor is gone")

    async def _kill_command(self, reading: asyncio.Task[_End]) -> None:
        """First the command's processes; then, if the shell itself is stuck in a loop of builtins, that too."""
        for spare_driver in (True, False):
            await self._sweep(spare_driver)
            await asyncio.wait({reading}, timeout=GRACE_S)
            if reading.done():
                return
        raise SandboxLost("the sandbox's shell did not come back after its command was killed")


class RestartingShell:
    """A shell that comes back: a command that kills even its supervisor ends the shell, not the sandbox.

    Args:
        open_shell: starts a shell; raises `SandboxLost` when the sandbox itself is gone.
        check: raises `SandboxLost` when the sandbox is gone; what it may still answer is not to be believed.
    """

    def __init__(self, open_shell: Callable[[], Awaitable[PipeShell]], check: Callable[[], None]) -> None:
        self._open_shell = open_shell
        self._check = check
        self._current: PipeShell | None = None
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Starts it if it does not run."""
        async with self._lock:
            await self._started()

    async def run(self, command: str, *, timeout_s: float, max_bytes: int = 65_536) -> ExecResult:
        """Runs one command line; see `Shell.run`."""
        async with self._lock:
            self._check()
            shell = await self._started()
            try:
                result = await shell.run(command, timeout_s=timeout_s, max_bytes=max_bytes)
            except BaseException:  # cancelled: the command must not go on
                await self._drop(shell)
                raise
            if shell.lost:
                await self._drop(shell)
                await self._replace()
            self._check()
            return result

    async def end(self) -> None:
        """Ends the current shell, with all that it started; the next command gets a new one."""
        if self._current is not None:
            await self._drop(self._current)

    async def _replace(self) -> None:
        """A new shell, and proof that it works: a sandbox that is just dying can still seem to start one."""
        for _ in range(REPLACEMENTS):
            shell = await self._started()
            if (await shell.run("true", timeout_s=REPLACE_S, max_bytes=2)).code == 0:
                return
            await self._drop(shell)
        raise SandboxLost("the sandbox's shell does not come back")

    async def _started(self) -> PipeShell:
        self._current = self._current or await self._open_shell()
        return self._current

    async def _drop(self, shell: PipeShell) -> None:
        self._current = None
        await uninterrupted(shell.end())
