"""`TextEnv`: a Gymnasium environment whose actions are tool calls and whose observations are messages.

A subclass writes hooks, sync or async: `setup(task)` gives the first messages, methods marked `@tool` act,
`grade()` gives the reward, `teardown()` frees what was taken. Everything else (parsing, validation, limits,
the five-tuple, rendering) is here.

The async methods (`areset`, `aturn`, `agrade`, `aclose`) are the environment; `reset`, `step` and `close`
drive them on an event loop of the environment's own, so that plain Gymnasium code can use it.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self, TypeVar

import anyio
import gymnasium as gym

from skyrl_gym.alarm import Alarm
from skyrl_gym.background import BackgroundLoop, call_hook
from skyrl_gym.chat.dialects import get_dialect
from skyrl_gym.errors import ConfigError, GradeError, MessageError, StopReason
from skyrl_gym.messages import Conversation, Message, ToolCall, add_text, format_transcript, tool_result, user
from skyrl_gym.outcomes import Grade, ResetTuple, StepTuple, Streaks, TurnResult, check_limits, step_tuple
from skyrl_gym.probes import NOTHING, Probe
from skyrl_gym.recording import Recording, ToolRecorder
from skyrl_gym.spaces import Action, ConversationSpace, ToolSpace, as_message
from skyrl_gym.tasks import Task, TaskSet
from skyrl_gym.tools import ContextEdit, Tool, ToolResult, ToolSpec, run_calls, tools_of

__all__ = ["Grade", "TextEnv", "TurnResult"]

T = TypeVar("T")
MAX_CALLS_PER_TURN = 16


class TextEnv(gym.Env[Conversation, Action]):
    """Base of every environment of this package.

    Args:
        split: which of the suite's task splits `reset` draws from.
        tasks: a TaskSet, or a path or hub id that `TaskSet.load` reads, in place of the suite's own.
        max_turns: answers of the policy before the episode is truncated; None for the suite's default.
        max_invalid: unusable answers in a row before the episode is truncated.
        max_repeats: the same action with the same result so often in a row, and the episode is truncated.
        dialect: how raw text and examples in prompts write calls; "auto": as the caller's model does, else Hermes.
        render_mode: "ansi" for the transcript as text.
        recording: where tool results are recorded or replayed from, like "replay:FOLDER"; see docs/recording.md.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 - as Gymnasium declares it
    default_max_turns: ClassVar[int] = 10
    splits: tuple[str, ...] = ("train", "test")

    def __init__(
        self,
        *,
        split: str = "train",
        tasks: TaskSet | str | None = None,
        max_turns: int | None = None,
        max_invalid: int = 3,
        max_repeats: int = 8,
        dialect: str = "auto",
        render_mode: Literal["ansi"] | None = None,
        recording: Recording | str | Mapping[str, Any] | None = None,
    ) -> None:
        if split not in self.splits:
            raise ConfigError(f"{type(self).__name__} has the splits {', '.join(self.splits)}; got {split!r}")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ConfigError(f"render_mode is None or one of {self.metadata['render_modes']}; got {render_mode!r}")
        check_limits(max_turns=max_turns, max_invalid=max_invalid, max_repeats=max_repeats)
        self.split = split
        self.max_turns = self.default_max_turns if max_turns is None else max_turns
        self.max_invalid = max_invalid
        self.max_repeats = max_repeats
        self.render_mode = render_mode
        self._dialect = get_dialect(dialect)
        self._task_source = tasks
        self._tasks: TaskSet | None = None
        self._recorder: ToolRecorder | None = None
        self._tools = self._equipped()
        self.action_space = ToolSpace(self.tool_specs)
        self.observation_space = ConversationSpace()
        self._loop: BackgroundLoop | None = None
        self._alarm = Alarm()  # for the tools, one after another
        self._open = False
        self._forget()
        if recording is not None:
            self.use_recording(Recording.of(recording))

    # ---- what a subclass writes

    def load_tasks(self, split: str) -> TaskSet:
        """The suite's own tasks of a split."""
        raise NotImplementedError

    def read_tasks(self, source: str) -> TaskSet:
        """The tasks of a path or hub id that stands in place of the suite's own."""
        return TaskSet.load(source)

    def make_tools(self) -> Sequence[Tool]:
        """The tools; by default the methods marked `@tool`."""
        return tools_of(self)

    def setup(self, task: Task) -> str | Conversation | Awaitable[str | Conversation]:
        """Prepares an episode and gives its first messages (text stands for one user message)."""
        raise NotImplementedError

    def respond(self, message: Message) -> str | ToolResult | Awaitable[str | ToolResult]:
        """Answers an assistant message without any call. Text reminds and counts as an unusable answer."""
        return f"Your message has no tool call. Call one of: {', '.join(self._tools)}."

    def notice(self, result: TurnResult) -> str:
        """Text to add to what the policy sees after a turn that does not end the episode; empty for none."""
        return ""

    def grade(self) -> float | Grade | Awaitable[float | Grade]:
        """The reward of the episode as it stands."""
        raise NotImplementedError

    def teardown(self) -> Awaitable[None] | None:
        """Frees what `setup` took; called once for every setup that was begun, even one that raised."""
        return None

    def probes(self, task: Task) -> Mapping[str, Probe] | Awaitable[Mapping[str, Probe]]:
        """Known players of a task by name, outside any episode: `gold` solves it, cheats must not score."""
        return {}

    def branch(self, twin: Self) -> Awaitable[None] | None:
        """Gives `twin` what `fork` can't: its own of each resource that `setup` took, as it is now.

        `twin` has the same attributes already. An environment whose whole state is in values that it never changes
        in place has nothing to do here; one that has a sandbox gives the twin a fork of it.
        """
        raise ConfigError(f"{type(self).__name__} can't be forked: it does not implement branch()")

    # ---- state

    @property
    def tasks(self) -> TaskSet:
        """The tasks that `reset` draws from.

        Raises:
            TaskError: the source can't be read.
            ConfigError: it holds no task.
        """
        if self._tasks is None:
            source = self._task_source
            tasks = self.load_tasks(self.split) if source is None else source
            self._tasks = tasks if isinstance(tasks, TaskSet) else self.read_tasks(tasks)
        if not len(self._tasks):
            raise ConfigError(f"{type(self).__name__}: the task set {self._tasks.name!r} ({self.split}) is empty")
        return self._tasks

    @property
    def task(self) -> Task:
        """The task of the current episode.

        Raises:
            MessageError: there is no episode yet.
        """
        if self._task is None:
            raise MessageError("there is no episode yet: call reset() first")
        return self._task

    @property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """What a policy needs to know of the tools."""
        return tuple(found.spec for found in self._tools.values())

    @property
    def conversation(self) -> Conversation:
        """What the policy should see next."""
        return self._conversation

    @property
    def stop_reason(self) -> StopReason | None:
        """How the current episode ended, or None while it runs."""
        return self._stop

    def _forget(self) -> None:
        self._task: Task | None = None
        self._conversation: Conversation = ()
        self._transcript: Conversation = ()
        self._turns = 0
        self._streaks = Streaks()
        self._stop: StopReason | None = None
        self._ready = False

    def use_recording(self, recording: Recording) -> None:
        """From the next episode on, plays the tools through a recording.

        Raises:
            ConfigError: there is one already.
        """
        if self._recorder is not None:
            raise ConfigError(f"{type(self).__name__} has a recording already")
        self._recorder = ToolRecorder(recording, f"{type(self).__module__}.{type(self).__qualname__}")
        self._tools = self._equipped()

    def _equipped(self) -> dict[str, Tool]:
        made = self.make_tools()
        return {found.name: found for found in (map(self._recorder.wrap, made) if self._recorder else made)}

    # ---- the environment, async

    async def areset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> ResetTuple:
        """Begins an episode.

        The task is `options["task"]` (a Task, a row, an id or an index), else one drawn by the seed.

        Raises:
            TaskError, ConfigError: no such task.
            InfraError: the environment could not be prepared; `ateardown` frees what there is of it.
        """
        super().reset(seed=seed)
        task = self._choose(dict(options or {}))
        await self.ateardown()
        self._forget()
        self._task, self._open = task, True
        if self._recorder is not None:
            self._recorder.begin(task.hash)
        opening = await call_hook(self.setup, task)
        self._conversation = self._transcript = (user(opening),) if isinstance(opening, str) else tuple(opening)
        self._ready = True
        return self._conversation, {"task_id": task.id}

    async def areset_or_free(self, **wanted: Any) -> ResetTuple:
        """As `areset`; frees what could not be prepared. A refused task leaves the episode that was under way."""
        try:
            return await self.areset(**wanted)
        except BaseException:
            if not self._ready:
                await self.ateardown()
            raise

    async def aturn(self, action: Action) -> TurnResult:
        """Carries out one action, without grading.

        Raises:
            MessageError: the episode has ended or not begun, or this is no action.
        """
        if not self._ready or self._stop is not None:
            raise MessageError("the episode has ended or not begun: call reset() before the next step")
        message = self._as_message(action)
        self._turns += 1
        result = await (self._run_tools(message) if message.tool_calls else self._answer_text(message))
        self._streaks = self._streaks.after(result)
        over = StopReason.MAX_TURNS if self._turns >= self.max_turns else None
        self._stop = result.stop or self._streaks.stop(self.max_invalid, self.max_repeats) or over
        result = result if result.stop is self._stop else replace(result, stop=self._stop)
        if self._stop is None and (notice := self.notice(result)):
            result = replace(result, observations=add_text(result.observations, notice))
        new = result.observations if result.context_edit else (message, *result.observations)
        self._conversation = new if result.context_edit else self._conversation + new
        if self.render_mode is not None:
            self._transcript = (*self._transcript, message, *result.observations)
        return result

    async def agrade(self) -> Grade:
        """The grade of the episode as it stands.

        Raises:
            GradeError: the grader failed, or gave no finite number.
        """
        grade = await call_hook(self.grade)
        grade = grade if isinstance(grade, Grade) else Grade(float(grade))
        if not math.isfinite(grade.reward):
            raise GradeError(f"{type(self).__name__}.grade() gave {grade.reward}, which is no reward")
        return grade

    async def astep(self, action: Action) -> StepTuple:
        """One action, graded when it ends the episode."""
        result = await self.aturn(action)
        grade = None if result.stop is None else await self.agrade()
        return step_tuple(self.task.id, self._conversation, result, grade)

    async def afork(self) -> Self:
        """A second environment at the same point of the same episode; the two go on apart, and are closed apart.

        Raises:
            ConfigError: this environment can't be forked.
            MessageError: there is no episode.
        """
        if not self._ready:
            raise MessageError("only an episode that has begun can be forked: call reset() first")
        twin = object.__new__(type(self))
        own = {"_loop": None, "_alarm": Alarm(), "_open": False, "_np_random": deepcopy(self.np_random)}
        twin.__dict__ |= self.__dict__ | own
        twin._recorder = self._recorder and self._recorder.fork()
        twin._tools = twin._equipped()
        twin.action_space = ToolSpace(twin.tool_specs)
        await call_hook(self.branch, twin)
        twin._open = True
        return twin

    async def ateardown(self) -> None:
        """Frees the episode's resources, once; a caller's cancellation does not cut it short."""
        if self._open:
            self._open = self._ready = False
            self._alarm.close()
            if type(self).teardown is TextEnv.teardown:
                return  # no thread for a hook that does nothing
            with anyio.CancelScope(shield=True):
                await call_hook(self.teardown)

    async def aclose(self) -> None:
        """Frees everything; may be called twice."""
        await self.ateardown()

    async def aprobes(self, task: Task) -> dict[str, Probe]:
        """The probes of a task, and `nothing`: no action at all, which earns at most 0."""
        return {NOTHING: Probe((), most=0.0), **await call_hook(self.probes, task)}

    # ---- the environment, sync

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetTuple:
        """Gymnasium's reset; see `areset_or_free`."""
        return self._drive(self.areset_or_free(seed=seed, options=options))

    def step(self, action: Action) -> StepTuple:
        """Gymnasium's step; the last one of an episode returns the graded reward."""
        return self._drive(self.astep(action))

    def fork(self) -> Self:
        """A second environment at the same point of the episode; see `afork`. Wrappers: `env.unwrapped.fork()`."""
        twin = self._drive(self.afork())
        assert self._loop is not None  # as it drove
        twin._loop = self._loop.share()  # what the twin got was opened there
        return twin

    def render(self) -> str | None:
        """The transcript as text, in render mode "ansi"."""
        return format_transcript(self._transcript) if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Gymnasium's close; may be called twice."""
        if self._loop is None:
            return
        try:
            self._loop.run(self.aclose())
        finally:
            self._loop.close()
            self._loop = None

    def _drive(self, work: Coroutine[Any, Any, T]) -> T:
        self._loop = self._loop or BackgroundLoop(f"{type(self).__name__}-loop")
        return self._loop.run(work)

    def __getstate__(self) -> dict[str, Any]:
        if self._open or self._loop is not None:
            raise MessageError("an environment can be pickled before reset() or after close(), not during an episode")
        # Tools hold generated classes and task sets functions, which don't pickle; both are made again.
        return {name: value for name, value in self.__dict__.items() if name not in ("_tools", "_tasks")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_tasks": None}
        self._tools = self._equipped()

    # ---- one turn

    def _choose(self, options: dict[str, Any]) -> Task:
        wanted = options.pop("task", None)
        if options:
            raise ConfigError(f"reset knows the option 'task' only; got {', '.join(sorted(options))}")
        if wanted is None:
            return self.tasks[int(self.np_random.integers(len(self.tasks)))]
        return Task.given(wanted) or self.tasks.pick(wanted)  # a task or a row needs no set, costly to load

    def _as_message(self, action: Action) -> Message:
        message = as_message(action, lambda text: self._dialect.parse(text, self.tool_specs))
        if all(call.id for call in message.tool_calls):
            return message
        calls = enumerate(message.tool_calls)
        named = (ToolCall(call.name, call.arguments, call.id or f"call_{self._turns}_{i}") for i, call in calls)
        return replace(message, tool_calls=tuple(named))

    async def _run_tools(self, message: Message) -> TurnResult:
        calls = message.tool_calls[:MAX_CALLS_PER_TURN]
        outcomes = await run_calls(self._tools, calls, self._alarm)
        reward = sum(outcome.reward for outcome in outcomes)
        if edit := next((o for o in outcomes if isinstance(o, ContextEdit)), None):
            return TurnResult(message, edit.messages, reward, context_edit=True)
        results = [o for o in outcomes if isinstance(o, ToolResult)]
        answers = [tool_result(call, result.content) for call, result in zip(calls, results, strict=True)]
        extra = message.tool_calls[MAX_CALLS_PER_TURN:]
        answers += [tool_result(c, f"Not executed: at most {MAX_CALLS_PER_TURN} calls a message.") for c in extra]
        errors, invalid = sum(result.is_error for result in results), all(result.invalid for result in results)
        stop = StopReason.DONE if any(result.ends_episode for result in results) else None
        return TurnResult(message, tuple(answers), reward, invalid, errors=errors, stop=stop)

    async def _answer_text(self, message: Message) -> TurnResult:
        answer = await call_hook(self.respond, message)
        if isinstance(answer, str):
            return TurnResult(message, (user(answer),), invalid=True)
        stop = StopReason.DONE if answer.ends_episode else None
        return TurnResult(message, (user(answer.content),), answer.reward, answer.invalid, stop=stop)
