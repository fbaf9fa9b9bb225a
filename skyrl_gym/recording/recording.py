"""`Recording`: a store of answers and the rule for when the world itself is asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from skyrl_gym.errors import ConfigError
from skyrl_gym.recording.store import Store, address

__all__ = ["Mode", "Recording"]

Mode: TypeAlias = Literal["record", "replay", "replay-or-record"]


class Recording:
    """Answers by the content of their questions, in a folder.

    `replay` never asks the world: a question without an answer is an error. `replay-or-record` asks and stores
    what it has no answer to. `record` asks everything anew and replaces what an earlier process stored. In all
    three what is handed on is what is stored, so that a replay gives the same again, byte for byte.

    Args:
        folder: where the answers are; one for each configuration of an environment or policy.
        mode: see above.
        tools: the names of the tools whose results are recorded; by default those that only read.
        shared: results hold for every task, as those of a search in a fixed corpus do; by default each task
            has its own.

    Attributes:
        hits: questions answered from the folder.
        misses: questions that the world was asked.
    """

    def __init__(
        self,
        folder: str | Path,
        mode: Mode = "replay-or-record",
        *,
        tools: Collection[str] | None = None,
        shared: bool = False,
    ) -> None:
        if mode not in get_args(Mode):
            raise ConfigError(f"the mode of a recording is one of {', '.join(get_args(Mode))}; got {mode!r}")
        self.mode = mode
        self.store = Store(folder)
        self.tools = None if tools is None else frozenset([tools] if isinstance(tools, str) else tools)
        self.shared = shared
        self.hits = 0
        self.misses = 0
        if mode == "replay" and not self.store.folder.is_dir():
            raise ConfigError(f"there is no recording in {self.store.folder} to replay; make one with mode record")

    @classmethod
    def of(cls, given: Recording | str | Mapping[str, Any]) -> Recording:
        """From a setting: "MODE:FOLDER", or a mapping of the constructor's arguments.

        Raises:
            ConfigError: it is neither.
        """
        if isinstance(given, Recording):
            return given
        if isinstance(given, Mapping):
            try:
                return cls(**given)
            except TypeError as error:
                raise ConfigError(f"a recording has folder, mode, tools and shared; got {dict(given)!r}") from error
        mode, colon, folder = str(given).partition(":")
        if not colon or not folder or mode not in get_args(Mode):
            raise ConfigError(f"a recording is MODE:FOLDER with {', '.join(get_args(Mode))} as MODE; got {given!r}")
        return cls(folder, mode)  # type: ignore[arg-type]

    async def answer(self, question: Any, about: str, ask: Callable[[], Awaitable[Any]]) -> Any | None:
        """The answer to a question, from the folder or from `ask`; None: there is none and asking is off.

        Questions and answers are JSON values. What `ask` raises is not stored.
        """
        name = address(question)
        held = self.store.get(name, own=self.mode == "record")
        if held is not None:
            self.hits += 1
            return held
        if self.mode == "replay":
            return None
        self.misses += 1
        return self.store.put(name, await ask(), about, replace=self.mode == "record")
