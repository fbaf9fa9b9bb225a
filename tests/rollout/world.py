"""A world on a virtual clock: an environment and a policy whose every step can fail, and a ledger of both."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from skyrl_gym import Task, TextEnv, ToolCall, finish, tool
from skyrl_gym.errors import EnvError, GradeError, PolicyError, SandboxLost, SetupError
from skyrl_gym.messages import assistant
from skyrl_gym.policy import Completion, Prompt, Sampling
from skyrl_gym.rollout import Deadlines, RolloutLimits, RolloutRequest, Runner, Trajectory
from skyrl_gym.rollout.virtual import run_virtual

CLOCKS = Deadlines(setup_s=10, policy_s=10, episode_s=60, grade_s=10, teardown_s=10, stop_s=2)
STAGES = ("setup", "policy", "tool", "grade", "teardown")
FAULTS = ("raise", "hang", "deaf", "late", "cancel_itself", "timeout_error", "connection_error")
FOREVER_S = 20_000  # no run of the tests takes so long; one that does waits for what will never come
DECLARED = {"setup": SetupError, "policy": PolicyError, "tool": SandboxLost, "grade": GradeError, "teardown": EnvError}


@dataclass
class World:
    """`stages` counts who is where now, `most` how many were there at once; by task, `opened` counts setups begun,
    `worked` calls of the tool, `closed` and `torn` teardowns begun and ended."""

    stages: Counter[str] = field(default_factory=Counter)
    most: Counter[str] = field(default_factory=Counter)
    opened: Counter[str] = field(default_factory=Counter)
    worked: Counter[str] = field(default_factory=Counter)
    closed: Counter[str] = field(default_factory=Counter)
    torn: Counter[str] = field(default_factory=Counter)

    def enter(self, stage: str) -> None:
        self.stages[stage] += 1
        self.most[stage] = max(self.most[stage], self.stages[stage])

    def leave(self, stage: str) -> None:
        self.stages[stage] -= 1

    def make(self, env_id: str, **kwargs: Any) -> "WorldEnv":
        return WorldEnv(self, **kwargs)


class WorldEnv(TextEnv):
    """Two turns: `work`, then `done`. A task's data give seconds a stage and {"fault": .., "at": stage}."""

    def __init__(self, world: World, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.world = world
        self.stage = ""
        self.torn_down = False

    def _to(self, stage: str) -> None:
        if self.torn_down:
            return  # the deaf go on after their time
        if self.stage:
            self.world.leave(self.stage)
        self.stage = stage
        if stage:
            self.world.enter(stage)

    async def setup(self, task: Task) -> str:
        self.world.opened[task.id] += 1
        self.world.enter("live")
        self._to("setup")
        await happen(task, "setup")
        self._to("ready")
        return task.id

    @tool
    async def work(self) -> str:
        """Works."""
        self._to("run")
        self.world.worked[self.task.id] += 1
        await happen(self.task, "tool")
        return "worked"

    @tool
    async def done(self) -> Any:
        """Ends."""
        return finish()

    async def grade(self) -> float:
        self._to("grade")
        await happen(self.task, "grade")
        return float(self.task.data.get("reward", 1.0))

    async def teardown(self) -> None:
        self._to("")
        self.torn_down = True
        self.world.leave("live")
        self.world.closed[self.task.id] += 1
        try:
            await happen(self.task, "teardown")
        finally:
            self.world.torn[self.task.id] += 1


class WorldPolicy:
    """Answers after the seconds that the task asks for; the first message names the task."""

    name = "world"
    renderer = None

    def __init__(self, tasks: Iterable[Task]) -> None:
        self.tasks = {task.id: task for task in tasks}
        self.calls = 0

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        self.calls += 1
        task = self.tasks[prompt.messages[0].text]
        first = len(prompt.messages) == 1
        cut = False
        if first == (task.data.get("turn", 0) == 0):
            await happen(task, "policy")
            cut = task.data.get("fault") == "cut"
        answer = assistant(None, ToolCall("work" if first else "done"))
        return Completion("", "length" if cut else "stop", message=answer)

    async def aclose(self) -> None:
        pass


async def happen(task: Task, stage: str) -> None:
    """What the task says of a stage: some seconds, and a fault."""
    await asyncio.sleep(task.data.get("seconds", {}).get(stage, 0.1))
    if task.data.get("at") != stage:
        return
    match task.data["fault"]:
        case "raise":
            raise DECLARED[stage]("planted")
        case "bug":
            raise TypeError("planted bug")
        case "hang":
            await asyncio.sleep(90.0)  # longer than every clock, and over when the world looks for what is left
        case "deaf":
            await ignoring_cancellation(40.0)
        case "late":
            await ignoring_cancellation(11.0)
        case "cancel_itself":
            raise asyncio.CancelledError
        case "timeout_error":
            raise TimeoutError("from user code")
        case "connection_error":
            raise ConnectionResetError("from a peer")


async def ignoring_cancellation(seconds: float) -> None:
    until = asyncio.get_running_loop().time() + seconds
    while (left := until - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue


def tasks_of(rows: Iterable[dict[str, Any]]) -> list[Task]:
    return [Task.from_row({"id": f"t{i}", "n": i, **row}) for i, row in enumerate(rows)]


def requests_of(tasks: Iterable[Task], samples: int = 1) -> list[RolloutRequest]:
    """A task's group is itself, unless its data have another."""
    return [
        RolloutRequest("world", task, task.data.get("group", task.id), sample)
        for task in tasks
        for sample in range(samples)
    ]


def runner_in(world: World, tasks: list[Task], **settings: Any) -> Runner:
    defaults: dict[str, Any] = {"deadlines": CLOCKS, "limits": RolloutLimits(live=4, setup=2, grade=2, retries=0)}
    return Runner(WorldPolicy(tasks), make=world.make, **(defaults | settings))


def play(
    world: World,
    rows: Iterable[dict[str, Any]],
    *,
    samples: int = 1,
    on_each: Callable[[Trajectory], None] = lambda trajectory: None,
    **settings: Any,
) -> tuple[list[Trajectory], float]:
    """The trajectories, and when (in virtual seconds) the run was over. Nothing of the run is left then."""
    tasks = tasks_of(rows)
    runner = runner_in(world, tasks, **settings)

    async def collect() -> tuple[list[Trajectory], float]:
        found = []
        async with asyncio.timeout(FOREVER_S):
            async for trajectory in runner.run(requests_of(tasks, samples)):
                on_each(trajectory)
                found.append(trajectory)
        ended = asyncio.get_running_loop().time()
        mended = {task.id for task in tasks if task.data.get("at") != "teardown"}
        assert all(world.torn[name] == world.opened[name] for name in mended), "what is closed is waited for"
        await asyncio.sleep(100)  # the deaf end by themselves
        assert len(asyncio.all_tasks()) == 1
        return found, ended

    return run_virtual(collect())
