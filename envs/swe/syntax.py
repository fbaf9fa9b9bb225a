"""Which fault of syntax an edit brings into a file. Nothing of the file is run.

Its syntax tree shows it, by processes of this machine that only parse; of Python the repository's own interpreter says
more, as it minds indentation and knows its version's grammar.
"""

from __future__ import annotations

import asyncio
import re

from skyrl_gym.sandbox import Sandbox
from skyrl_gym.tools.code_search import Fault, Parsers, default_parsers, language_of, new_fault

__all__ = ["SyntaxCheck"]

COMPILE_S = 30.0
# Compiled inside: deeply nested code can take the interpreter that compiles it along.
_COMPILE = """
import sys
try:
    compile(sys.stdin.buffer.read(), "file", "exec", dont_inherit=True)
except Exception as error:
    message = getattr(error, "msg", None) or error
    print(getattr(error, "lineno", None) or 1, f"{type(error).__name__}: {message}")
"""
_SAID = re.compile(r"(\d+) (\w+: .*)\s*")


class SyntaxCheck:
    """Compares a file before and after an edit.

    Args:
        box: where the file is.
        python: the interpreter in it; None if there is none.
        parsers: those of the process unless given.
    """

    def __init__(self, box: Sandbox, python: str | None, parsers: Parsers | None = None) -> None:
        self._box = box
        self._python = python
        self._parsers = parsers or default_parsers()

    def moved(self, box: Sandbox) -> SyntaxCheck:
        """The same in a fork of the sandbox."""
        return SyntaxCheck(box, self._python, self._parsers)

    async def new_fault(self, path: str, before: bytes | None, after: bytes) -> Fault | None:
        """The first fault that the file did not have before; None too if its language is not known here."""
        language = language_of(path)
        if language is None or not (new := await self._faults(language, after)):
            return None
        old = await self._faults(language, before) if before else []
        return new_fault(before or b"", old, after, new)

    async def _faults(self, language: str, data: bytes) -> list[Fault]:
        if language == "python" and self._python is not None:
            return await self._compiled(self._python, data)
        return await asyncio.to_thread(self._parsers.faults, language, data)

    async def _compiled(self, python: str, data: bytes) -> list[Fault]:
        """At most one: a compiler ends at the first."""
        command = [python, "-I", "-B", "-W", "ignore", "-c", _COMPILE]
        ran = await self._box.exec(command, timeout_s=COMPILE_S, stdin=data)
        if said := _SAID.fullmatch(ran.text):
            return [Fault(int(said[1]), int(said[1]), said[2])]
        return [] if ran.code in (0, None) else [Fault(1, 1, "the interpreter ends when it compiles it")]
