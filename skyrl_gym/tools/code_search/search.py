"""The search tool: one question, one text that says what was found, how, and what to ask next."""

from __future__ import annotations

import asyncio
import posixpath

from skyrl_gym.errors import ToolError
from skyrl_gym.tools.code_search import show
from skyrl_gym.tools.code_search.answers import AROUND, Mode, answer, by_words
from skyrl_gym.tools.code_search.lookup import is_pattern, within
from skyrl_gym.tools.code_search.place import Place
from skyrl_gym.tools.code_search.repository import Match, Repository
from skyrl_gym.tools.code_search.store import Store, default_store
from skyrl_gym.tools.code_search.table import Index
from skyrl_gym.tools.code_search.tracker import Tracker
from skyrl_gym.tools.result import cap_text

__all__ = ["CodeSearch"]

MAX_BYTES = 14_000
MAX_QUERY = 500


class CodeSearch:
    """Answers questions about the code below a folder where an agent works.

    Nothing is written there. Every question looks for changes first, so that the answer is of the files as they are.

    Args:
        place: where the files are, a sandbox.
        root: the folder.
        store: what is shared with other episodes; the process's unless given.
    """

    def __init__(self, place: Place, root: str, store: Store | None = None) -> None:
        self._root = root
        self._store = store or default_store()
        self.tracker = Tracker(Repository(place, root), self._store)

    def moved(self, place: Place) -> CodeSearch:
        """The same in a copy of the place."""
        return CodeSearch(place, self._root, self._store)

    async def search(
        self, query: str = "", mode: Mode = "find", path: str | None = None, lines: list[int] | None = None
    ) -> str:
        """The answer, at most some 14 KB. It is never empty.

        Raises:
            ToolError: the question can't be answered as it is; the text says how to ask.
            MissingDependency: a grammar is not installed.
        """
        if len(query) > MAX_QUERY:
            raise ToolError(f"query has {len(query)} characters; at most {MAX_QUERY} are taken.")
        where = self._relative(path)
        if mode == "text":
            return cap_text(await self._text(query, where), MAX_BYTES)
        index = await self.tracker.index()
        query = query.strip().removeprefix(f"{self._root.rstrip('/')}/").removeprefix("./")
        found = await asyncio.to_thread(answer, index, query, mode, where, lines)
        if found is None:
            found = await self._last_resort(index, query, where)
        return cap_text(found, MAX_BYTES)

    def _relative(self, path: str | None) -> str | None:
        """A path as the index has it; None for all of the repository."""
        if path is None or not path.strip():
            return None
        plain = posixpath.normpath(posixpath.join(self._root, path.strip()))
        inside = posixpath.relpath(plain, self._root)
        if inside.startswith(".."):
            raise ToolError(f"path is in the repository, {self._root}; got {path!r}.")
        return None if inside == "." else inside

    async def _text(self, query: str, path: str | None) -> str:
        if not query.strip() or "\n" in query:
            raise ToolError("mode='text' needs a query of one line.")
        for ignore_case in (False, True):
            if found := await self._lines(query, path, ignore_case=ignore_case):
                case = " (in other case)" if ignore_case else ""
                files = len({match.path for match in found})
                next_ = _code_at(found[0])
                head = f"{len(found)} lines in {files} files hold {query!r}{case}:"
                narrow = "; name a file with path= to see the lines" if len(found) > show.FOLDED * 2 else ""
                return f"{head}\n{show.matches(found)}\nNext: {next_}{narrow}"
        inside = f" in {path}" if path else ""
        return f"No line{inside} holds {query!r}.\nNext: {show.call(query=query)}, or fewer words of it."

    async def _last_resort(self, index: Index, query: str, path: str | None) -> str:
        """No definition has or resembles the name: the text as it is, then its words, then what is near."""
        text = query.strip()
        inside = f" in {path}" if path else ""
        head = f"No definition{inside} is named {text!r} or nearly so."
        if "\n" not in text and (found := await self._lines(text, path)):
            next_ = _code_at(found[0])
            return f"{head} {len(found)} lines hold it as text:\n{show.matches(found)}\nNext: {next_}"
        return await asyncio.to_thread(by_words, index, text, path, head)

    async def _lines(self, text: str, path: str | None, *, ignore_case: bool = False) -> list[Match]:
        """The lines that hold a text, in all files that are meant by a path."""
        place = "." if path is None or is_pattern(path) else f"./{path}"
        found = await self.tracker.repository.matches(text, place, ignore_case=ignore_case)
        return [match for match in found if within(match.path, path)]


def _code_at(match: Match) -> str:
    return show.call(mode="code", path=match.path, lines=[max(1, match.line - AROUND), match.line + AROUND])
