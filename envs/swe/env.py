"""`skyrl/swe-v0`: repair a bug in a Python package inside a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib.resources import as_file, files
from pathlib import Path, PurePosixPath
from string import Template
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from skyrl_gym.env import Grade, TextEnv
from skyrl_gym.envs.swe.editor import insert_text, replace_text, view_text
from skyrl_gym.envs.swe.grading import changes_of, read_archive, run_tests, score
from skyrl_gym.envs.swe.instance import Instance, read_instance
from skyrl_gym.envs.swe.prepare import REPOSITORY, base_tree, runtime
from skyrl_gym.errors import ConfigError, ToolError
from skyrl_gym.sandbox import BACKENDS, ExecResult, Mount, Sandbox, SandboxSpec, open_sandbox
from skyrl_gym.tasks import Task, TaskSet
from skyrl_gym.tools import ToolResult, finish, tool

__all__ = ["SweEnv"]

MAX_OUTPUT = 16_384
BASH_TIMEOUT_S = 120


class SweEnv(TextEnv):
    """A repository with a bug, a shell and an editor; the reward is 1 when the hidden tests pass.

    Args:
        sandbox: the backend; `process` does not isolate and must be asked for.
        kwargs: of `TextEnv`. `tasks` may be a JSONL file in SWE-bench's schema.
    """

    default_max_turns: ClassVar[int] = 50

    def __init__(self, *, sandbox: str = "bubblewrap", **kwargs: Any) -> None:
        if sandbox not in BACKENDS:
            raise ConfigError(f"sandbox is one of {', '.join(BACKENDS)}; got {sandbox!r}")
        super().__init__(**kwargs)
        self.sandbox = sandbox
        self._box: Sandbox | None = None

    def load_tasks(self, split: str) -> TaskSet:
        """The shipped tasks: small packages with an injected bug each."""
        with as_file(files("skyrl_gym.envs.swe") / "data" / f"{split}.jsonl") as path:
            return TaskSet.from_jsonl(path)

    async def setup(self, task: Task) -> str:
        """Opens a sandbox with the repository in it."""
        self._instance: Instance = read_instance(task)
        self._tree: Path = await asyncio.to_thread(base_tree, self._instance)
        needed = await asyncio.to_thread(runtime, self._instance)
        code = str(PurePosixPath(REPOSITORY) / self._instance.python_path)
        spec = SandboxSpec(
            mounts=(Mount(str(self._tree), REPOSITORY, "private"), *needed.mounts),
            workdir=REPOSITORY,
            env={"PYTHONPATH": ":".join([*needed.paths, code]), "PYTHONDONTWRITEBYTECODE": "1"},
        )
        self._history: list[tuple[str, bytes | None]] = []
        self._box = await open_sandbox(spec, self.sandbox)
        text = (files("skyrl_gym.envs.swe") / "prompts" / "task.md").read_text()
        return Template(text).substitute(
            repository=REPOSITORY, problem=self._instance.problem_statement.strip(), python=needed.python
        )

    @tool(timeout_s=BASH_TIMEOUT_S + 30, max_bytes=MAX_OUTPUT)
    async def bash(self, command: str, timeout: Annotated[int, Field(ge=1, le=BASH_TIMEOUT_S)] = BASH_TIMEOUT_S) -> str:
        """Run a command in a persistent bash shell.

        Args:
            command: what to run; it can't read input
            timeout: seconds until it is stopped
        """
        shell = await self._sandbox.shell()
        return _describe(await shell.run(command, timeout_s=timeout, max_bytes=MAX_OUTPUT), timeout)

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
        match command:
            case "view":
                return await self._view(path, view_range)
            case "create":
                return await self._create(path, _needed("file_text", file_text))
            case "str_replace":
                old, new = _needed("old_str", old_str), new_str or ""
                return await self._change(path, lambda data: replace_text(data, old, new))
            case "insert":
                line, text = _needed("insert_line", insert_line), _needed("new_str", new_str)
                return await self._change(path, lambda data: insert_text(data, line, text))
            case "undo":
                return await self._undo(path)

    @tool
    async def submit(self) -> ToolResult:
        """Hand in the repository as it is now; this ends the task."""
        return finish("Handed in.")

    async def grade(self) -> Grade:
        """Runs the tests on the agent's changes in a sandbox of their own."""
        held = await read_archive(self._sandbox)
        changes = await asyncio.to_thread(changes_of, self._tree, held)
        report = await run_tests(self._instance, self._tree, changes, self.sandbox)
        reward, metrics = score(self._instance, report)
        return Grade(reward, {**metrics, "files_changed": float(len(changes))})

    async def teardown(self) -> None:
        """Closes the sandbox."""
        box, self._box = self._box, None
        if box is not None:
            await box.close()

    # ---- the editor

    @property
    def _sandbox(self) -> Sandbox:
        if self._box is None:
            raise ConfigError("the environment is closed")
        return self._box

    async def _view(self, path: str, view_range: list[int] | None) -> str:
        if view_range is not None and len(view_range) != 2:
            raise ToolError(f"view_range is [first, last]; got {view_range}.")
        first, last = view_range or (1, -1)
        try:
            data = await self._sandbox.read(path)
        except IsADirectoryError:
            return await self._list(path)
        except OSError as error:
            raise ToolError(f"{error}.") from None
        return view_text(data, first, last)

    async def _list(self, path: str) -> str:
        command = ["find", path, "-maxdepth", "2", "-not", "-path", "*/.*"]
        result = await self._sandbox.exec(command, timeout_s=30, max_bytes=MAX_OUTPUT)
        return "\n".join(sorted(result.text.splitlines()))

    async def _create(self, path: str, text: str) -> str:
        if await self._read_or_none(path) is not None:
            raise ToolError(f"{path} is there already; use str_replace to change it.")
        return await self._write(path, None, text.encode(errors="surrogateescape"), f"Created {path}.")

    async def _change(self, path: str, change: Callable[[bytes], bytes]) -> str:
        before = await self._read_or_none(path)
        if before is None:
            raise ToolError(f"There is no file {path}; use create for a new one.")
        after = change(before)
        at = _first_difference(before, after)
        shown = view_text(after, max(1, at - 3), min(at + 8, after.count(b"\n") + 1)) if after else ""
        return await self._write(path, before, after, f"Changed {path}:\n{shown}{_syntax_warning(path, after)}")

    async def _undo(self, path: str) -> str:
        for index in range(len(self._history) - 1, -1, -1):
            if self._history[index][0] == path:
                before = self._history.pop(index)[1]
                if before is None:
                    await self._sandbox.exec(["rm", "-f", "--", path], timeout_s=30)
                    return f"Removed {path}, which had been created."
                await self._attempt(self._sandbox.write(path, before))
                return f"Took back the last change of {path}."
        raise ToolError(f"There is no change of {path} to take back.")

    async def _read_or_none(self, path: str) -> bytes | None:
        try:
            return await self._sandbox.read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ToolError(f"{error}.") from None

    async def _write(self, path: str, before: bytes | None, after: bytes, message: str) -> str:
        await self._attempt(self._sandbox.write(path, after))
        self._history.append((path, before))
        return message

    async def _attempt(self, work: Awaitable[None]) -> None:
        try:
            await work
        except OSError as error:
            raise ToolError(f"{error}.") from None


def _needed(name: str, value: Any) -> Any:
    if value is None:
        raise ToolError(f"This command needs {name}.")
    return value


def _describe(result: ExecResult, timeout: int) -> str:
    notes = {
        "ok": f"[exit status {result.code}]" if result.code else "",
        "timeout": f"[stopped after {timeout} s]",
        "output_limit": "[stopped: too much output]",
        "shell_exited": f"[the shell exited with status {result.code}; a new one was started]",
    }
    return "\n".join(part for part in (result.text.rstrip("\n"), notes[result.status]) if part)


def _first_difference(before: bytes, after: bytes) -> int:
    """The number of the first line that differs."""
    for number, (old, new) in enumerate(zip(before.split(b"\n"), after.split(b"\n"), strict=False), 1):
        if old != new:
            return number
    return min(before.count(b"\n"), after.count(b"\n")) + 1


def _syntax_warning(path: str, data: bytes) -> str:
    if not path.endswith(".py"):
        return ""
    try:
        compile(data, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return f"\nWarning: the file does not compile: {error}"
    return ""
