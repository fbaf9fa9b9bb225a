"""`skyrl/swe-v0` and its kin: repair a bug in a repository inside a sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from string import Template
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from skyrl_gym.env import Grade, TextEnv, TurnResult
from skyrl_gym.envs.swe.changes import taken_over
from skyrl_gym.envs.swe.cheats import cheats
from skyrl_gym.envs.swe.files import SYNTAX_WARNING, FileEditor
from skyrl_gym.envs.swe.grading import run_tests, score
from skyrl_gym.envs.swe.hints import HINTS, Course, check_hints, hints
from skyrl_gym.envs.swe.instance import Instance, read_instance
from skyrl_gym.envs.swe.report import TestReport
from skyrl_gym.envs.swe.schemas import standard_row
from skyrl_gym.envs.swe.solve import gold_actions
from skyrl_gym.envs.swe.sources import SHIPPED, load_source, read_tasks, splits_of
from skyrl_gym.envs.swe.syntax import SyntaxCheck
from skyrl_gym.envs.swe.workplace import Workplace, open_workplace
from skyrl_gym.errors import ConfigError, MessageError, ToolError
from skyrl_gym.messages import ToolCall
from skyrl_gym.probes import GOLD, Probe
from skyrl_gym.sandbox import ExecResult, SandboxPool, pool_in_use
from skyrl_gym.tasks import Task, TaskSet
from skyrl_gym.tools import Tool, ToolResult, finish, tool, tools_of
from skyrl_gym.tools.code_search import CodeSearch, Mode, check_grammars

__all__ = ["SweEnv"]

MAX_OUTPUT = 16_384
NOTE_ROOM = 512
BASH_S = 120
SEARCH_S = 60.0
NOT_FOUND = 127  # a shell's exit status for a command that is not there
CHARACTERS = 4  # of a token, about


@dataclass(frozen=True)
class _Episode:
    instance: Instance
    place: Workplace
    editor: FileEditor
    search: CodeSearch
    course: Course


class SweEnv(TextEnv):
    """A repository with a bug, a shell and an editor; the reward is 1 when the tests pass that have to.

    Args:
        source: where the tasks come from: `shipped`, or one of the published sets that the suite card lists.
        prompt: `task`, `workflow` with the steps to take, or a file of your own ($repository, $problem,
            $python, $looking).
        hints: which notices and hints the agent gets: turns, tokens, edits, commands, repeats.
        code_search: whether the agent has the tool `search`, and the prompt names it.
        context_tokens: of the model; the notice of tokens counts from it, at four characters a token.
        kwargs: of `TextEnv`. `tasks` may be a file or hub id with rows in any of the published schemas.
    """

    default_max_turns: ClassVar[int] = 50

    def __init__(
        self,
        *,
        source: str = SHIPPED,
        prompt: str = "task",
        hints: Sequence[str] = HINTS,
        code_search: bool = True,
        context_tokens: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.splits = splits_of(source)
        self.source = source
        self.prompt = _prompt(prompt)
        self.hints = check_hints(hints)
        self.code_search = code_search
        self.context_tokens = context_tokens
        check_grammars()
        super().__init__(**kwargs)
        self._place: Workplace | None = None
        self._episode: _Episode | None = None
        self._pool: SandboxPool | None = None

    def load_tasks(self, split: str) -> TaskSet:
        """The tasks of the source."""
        if self.source != SHIPPED:
            return load_source(self.source, split)
        with as_file(files("skyrl_gym.envs.swe") / "data" / f"{split}.jsonl") as path:
            return TaskSet.from_jsonl(path)

    def read_tasks(self, source: str) -> TaskSet:
        """The tasks of a file or hub id, in whichever published schema."""
        return read_tasks(source)

    def make_tools(self) -> Sequence[Tool]:
        """Those of the class, without `search` if it is switched off."""
        return [made for made in tools_of(self) if self.code_search or made.name != "search"]

    async def setup(self, task: Task) -> str:
        """Opens a sandbox with the repository in it."""
        instance = read_instance(Task(task.id, standard_row(task.data)))
        place = self._place = await open_workplace(instance, self._sandboxes)  # to be closed whatever comes now
        search = CodeSearch(place.box, place.repository)
        editor = FileEditor(place.box, SyntaxCheck(place.box, place.python))
        self._episode = _Episode(instance, place, editor, search, Course())
        problem = instance.problem_statement.strip()
        words = {
            "repository": place.repository,
            "problem": problem,
            "python": place.python or "python",
            "looking": "search and bash" if self.code_search else "bash",
        }
        return Template(self.prompt).safe_substitute(words)

    def notice(self, result: TurnResult) -> str:
        """What is left, and what to do after something that failed."""
        used = sum(len(message.text or "") + len(str(message.tool_calls)) for message in self.conversation)
        used += sum(len(message.text or "") for message in (result.action, *result.observations))
        left = None if self.context_tokens is None else self.context_tokens - used // CHARACTERS
        course = self._current.course
        course.count(result.action.tool_calls)
        text = hints(self.hints, course, self.max_turns - self._turns, left)
        course.forget()
        return text

    @tool(timeout_s=BASH_S + 30, max_bytes=MAX_OUTPUT)
    async def bash(self, command: str, timeout: Annotated[int, Field(ge=1, le=BASH_S)] = BASH_S) -> str:
        """Run a command in a persistent bash shell.

        Args:
            command: what to run; it can't read input
            timeout: seconds until it is stopped
        """
        shell = await self._current.place.box.shell()
        result = await shell.run(command, timeout_s=timeout, max_bytes=MAX_OUTPUT - NOTE_ROOM)
        if result.status == "timeout" or result.code == NOT_FOUND:
            self._current.course.failed = "timeout" if result.status == "timeout" else "unknown"
        return _describe(result, timeout)

    @tool(max_bytes=MAX_OUTPUT)
    async def edit(
        self,
        command: Literal["view", "create", "str_replace", "insert", "undo"],
        path: str,
        old_str: str | None = None,
        new_str: str | None = None,
        file_text: str | None = None,
        insert_line: int | None = None,
        view_range: list[int] | None = None,
    ) -> str:
        """View, create or change a text file.

        Args:
            command: what to do; undo takes back the last change of the file
            path: the file, absolute or relative to the repository
            old_str: str_replace - the text to replace; it must stand in the file once
            new_str: str_replace, insert - the new text
            file_text: create - the whole content
            insert_line: insert - the line after which the text is added; 0 for the beginning
            view_range: view - first and last line
        """
        course = self._current.course
        try:
            done = await self._edited(command, path, old_str, new_str, file_text, insert_line, view_range)
        except ToolError:
            if command in ("str_replace", "insert"):
                course.failed, course.path = "edits", path
            raise
        if SYNTAX_WARNING in done:
            course.failed, course.path = "syntax", path
        return done

    async def _edited(
        self,
        command: str,
        path: str,
        old_str: str | None,
        new_str: str | None,
        file_text: str | None,
        insert_line: int | None,
        view_range: list[int] | None,
    ) -> str:
        editor = self._current.editor
        match command:
            case "view":
                return await editor.view(path, *_range(view_range))
            case "create":
                return await editor.create(path, _needed("file_text", file_text))
            case "str_replace":
                return await editor.replace(path, _needed("old_str", old_str), new_str or "")
            case "insert":
                return await editor.insert(path, _needed("insert_line", insert_line), _needed("new_str", new_str))
            case _:
                return await editor.undo(path)

    @tool(timeout_s=SEARCH_S, max_bytes=MAX_OUTPUT, effect="reads")
    async def search(
        self, query: str = "", mode: Mode = "find", path: str | None = None, lines: list[int] | None = None
    ) -> str:
        """Find definitions by name, who calls them, what is in a file; or text.

        Args:
            query: a name (Class.method, module.function, part of one), a file, file:name, file:line, or a text
            mode: find - definitions; callers, callees - of a function; imports - of a file or name; outline - of a
                file, folder or class; code - lines of a file; text - lines that hold the query
            path: only in this file or folder, or files that fit a pattern like src/**/*.py
            lines: code - first and last line
        """
        return await self._current.search.search(query, mode, path, lines)

    @tool
    async def submit(self) -> ToolResult:
        """Hand in the repository as it is now; this ends the task."""
        return finish("Handed in.")

    async def grade(self) -> Grade:
        """Runs the tests on the agent's changes, in a sandbox of their own."""
        episode = self._current
        changes = await episode.place.changes()
        if changes is None:
            return Grade(*score(episode.instance, TestReport(intact=False)))
        counted = taken_over(episode.instance, changes)
        report = await run_tests(episode.instance, counted)
        reward, metrics = score(episode.instance, report)
        return Grade(reward, {**metrics, "files_changed": float(len(counted))}, {"patch": report.patch})

    def probes(self, task: Task) -> dict[str, Probe]:
        """The gold patch, carried out through the tools, and every cheat of the kit."""
        instance = read_instance(Task(task.id, standard_row(task.data)))
        played = {name: Probe([call, ToolCall("submit")], most=0.0) for name, call in cheats(instance).items()}
        return {GOLD: Probe(gold_actions(task), least=1.0, most=1.0), **played}

    async def branch(self, twin: Self) -> None:
        """The repository as it is now, in a sandbox of the twin's own; its shell begins anew."""
        box = await self._current.place.box.fork()
        twin._pool = None  # this one's
        now = self._current
        place, editor, search = now.place.moved(box), now.editor.moved(box), now.search.moved(box)
        twin._place = place
        twin._episode = replace(now, place=place, editor=editor, search=search, course=replace(now.course))

    async def teardown(self) -> None:
        """Closes the sandbox."""
        self._episode = None
        place, self._place = self._place, None
        if place is not None:
            await place.box.close()

    async def aclose(self) -> None:
        """Frees everything, what was started ahead too; may be called twice."""
        await super().aclose()
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    @property
    def _sandboxes(self) -> SandboxPool:
        """That of the run, else one of its own: who plays a task again gets what has been started meanwhile."""
        if (pool := pool_in_use()) is not None:
            return pool
        self._pool = self._pool or SandboxPool(ready=1, most=2)
        return self._pool

    @property
    def _current(self) -> _Episode:
        if self._episode is None:
            raise MessageError("the episode has ended or not begun: call reset() first")
        return self._episode


def _prompt(name: str) -> str:
    """The text of a prompt that comes with the suite, or of a file."""
    own = files("skyrl_gym.envs.swe") / "prompts"
    if (own / f"{name}.md").is_file():
        return (own / f"{name}.md").read_text()
    path = Path(name).expanduser()
    if not path.is_file():
        raise ConfigError(f"prompt is 'task', 'workflow' or a file; got {name!r}")
    return path.read_text()


def _needed(name: str, value: Any) -> Any:
    if value is None:
        raise ToolError(f"This command needs {name}.")
    return value


def _range(view_range: list[int] | None) -> tuple[int, int]:
    if view_range is None:
        return 1, -1
    if len(view_range) != 2:
        raise ToolError(f"view_range is [first, last]; got {view_range}.")
    return view_range[0], view_range[1]


def _describe(result: ExecResult, timeout: int) -> str:
    notes = {
        "ok": f"[exit status {result.code}]" if result.code else "",
        "timeout": f"[stopped after {timeout} s]",
        "output_limit": "[stopped: too much output]",
        "shell_exited": "[the shell exited" + (f" with status {result.code}]" if result.code is not None else "]"),
    }
    restarted = "[a new shell was started: variables and working directory are lost]" if result.restarted else ""
    return "\n".join(part for part in (result.text.rstrip("\n"), notes[result.status], restarted) if part)
