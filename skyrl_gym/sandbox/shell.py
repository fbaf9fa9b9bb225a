"""A persistent bash behind pipes, its commands framed by nonces.

A supervisor bash holds the control pipes on descriptors that commands never see, and starts a driver bash
which evaluates one command after another. A command that ends its shell (`exit`, `exec`, `kill -9 $$`) costs
that shell's state; the supervisor starts a new driver. Commands read an empty stdin. What a background job
prints after its command has ended appears with the next command.

Not promised: a command can imitate the end marker of its own run. Nothing that grades may use this shell.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import NamedTuple

from skyrl_gym.errors import SandboxLost
from skyrl_gym.sandbox.base import ExecResult, ExecStatus
from skyrl_gym.sandbox.output import CappedOutput, MarkedStream
from skyrl_gym.sandbox.running import Pipes, uninterrupted

__all__ = ["DRIVER_ENV", "SHELL_COMMAND", "PipeShell", "RestartingShell"]

# A signal that does nothing here does to commands what it does everywhere; one that is ignored is ignored by them too.
_DRIVER = r"""
trap : INT TERM HUP
while IFS= read -r -d '' -u 200 __n && IFS= read -r -d '' -u 200 __c; do
  eval -- "$__c" </dev/null >&201 2>&201 200<&- 201>&-
  printf '\001%s %d\001' "$__n" "$?" >&201
done
exit 111
"""
_SUPERVISOR = r"""
trap : INT TERM HUP
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


class _Flooded(Exception):
    """A command has printed more than any is let print."""


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
        self._greeting = f"{self._secret}\0"

    async def run(self, command: str, *, timeout_s: float, max_bytes: int) -> ExecResult:
        """Runs one command line; see `Shell.run`. When it is cancelled or sets `lost`, the shell is to be ended."""
        began = time.monotonic()
        output = CappedOutput(max_bytes)
        talk = _Talk(self._marks, self._secret, output, self._send)
        status: ExecStatus = "ok"
        try:
            try:
                async with asyncio.timeout(timeout_s) as clock:
                    await self._send(talk.nonce, command)
                    end = await talk.end()
            except (_Flooded, TimeoutError) as error:
                if isinstance(error, TimeoutError) and not clock.expired():
                    raise
                status = "timeout" if isinstance(error, TimeoutError) else "output_limit"
                end = await self._kill_command(talk)
        except SandboxLost:
            self.lost = True
            end = _End(None, shell_exited=True, restarted=True)
        code = None if status == "timeout" else end.code
        if end.shell_exited and status == "ok":
            status = "shell_exited"
        return ExecResult(
            output.value(), code, status, time.monotonic() - began, output.dropped, restarted=end.restarted
        )

    async def _send(self, nonce: str, command: str) -> None:
        data = f"{self._greeting}{nonce}\0{command.replace(chr(0), '')}\0".encode(errors="replace")
        self._greeting = ""
        try:
            self._stdin.write(data)
            await self._stdin.drain()
        except (BrokenPipeError, ConnectionResetError) as error:
            raise SandboxLost("the sandbox's shell is gone") from error

    async def _kill_command(self, talk: _Talk) -> _End:
        """First the command's processes; then, if the shell itself is stuck in a loop of builtins, that too."""
        for spare_driver in (True, False):
            await self._sweep(spare_driver)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GRACE_S):
                    return await talk.end()
        raise SandboxLost("the sandbox's shell did not come back after its command was killed")


class _Talk:
    """What is heard of one command, up to its end.

    A driver that dies is told of by the supervisor, with the secret for a nonce. Whether it had taken up the command
    before, the next driver tells: it is sent a probe behind it, and either answers both or the probe alone.
    """

    def __init__(
        self, marks: MarkedStream, secret: str, output: CappedOutput, send: Callable[[str, str], Awaitable[None]]
    ) -> None:
        self.nonce = secrets.token_hex(8)
        self._marks = marks
        self._secret = secret
        self._output = output
        self._send = send
        self._flooded = False
        self._code: int | None = None
        self._driver_code: int | None = None
        self._probe = ""

    async def end(self) -> _End:
        """Reads up to the command's end; to be called anew when it was cancelled or raised `_Flooded`, which it does
        once.
        """
        while mark := await self._marks.until({self.nonce, self._secret, self._probe}, self._output, told=self._watch):
            if mark.nonce == self._secret:
                self._driver_code = int(mark.word)
                await self._send_probe()
            elif mark.nonce == self.nonce:
                self._code = int(mark.word)
            if mark.nonce == (self._probe or self.nonce):
                exited = self._code is None
                return _End(self._driver_code if exited else self._code, exited, restarted=bool(self._probe))
        raise SandboxLost("the shell's supervisor is gone")

    async def _send_probe(self) -> None:
        if not self._probe:
            self._probe = secrets.token_hex(8)
            await self._send(self._probe, ":")

    def _watch(self) -> None:
        if self._output.total > OUTPUT_LIMIT and not self._flooded:
            self._flooded = True
            raise _Flooded


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
