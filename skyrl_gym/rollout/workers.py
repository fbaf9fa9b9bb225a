"""Processes of a Ray cluster that play attempts: kept alive, replaced when they die, freed at the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from skyrl_gym.env import TextEnv
from skyrl_gym.errors import MissingDependency, RunAborted, StopReason, UserError, WorkerLost
from skyrl_gym.policy.base import Policy, Sampling
from skyrl_gym.rollout.attempt import Attempt
from skyrl_gym.rollout.places import AttemptPlaces
from skyrl_gym.rollout.requests import Deadlines, RolloutLimits, RolloutRequest
from skyrl_gym.rollout.runner import Runner
from skyrl_gym.rollout.schedule import Slots
from skyrl_gym.rollout.trajectory import Trajectory, Turn

__all__ = ["Cluster", "Member", "Orders", "Played", "Workers", "import_ray"]

_log = logging.getLogger(__name__)

BEAT_S = 2.0
AGAIN_S = 1.0


def import_ray() -> Any:
    """The module.

    Raises:
        MissingDependency: it isn't installed.
    """
    try:
        import ray
    except ImportError:
        raise MissingDependency.extra("ray", "ray") from None
    return ray


@dataclass(frozen=True)
class Orders:
    """What a worker is told once; it travels to other machines."""

    make_policy: Callable[[], Policy]
    sampling: Sampling
    env_kwargs: Mapping[str, Any]
    limits: RolloutLimits
    deadlines: Deadlines
    make: Callable[..., TextEnv]


@dataclass(frozen=True)
class Played:
    """What an attempt came to on a worker."""

    trajectory: Trajectory
    error: BaseException | None
    leaked: bool


class Worker:
    """Plays attempts on one event loop, each stage within the limits; an actor of Ray in a process of its own."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._runner: Runner | None = None
        self._playing: dict[int, asyncio.Task[Trajectory]] = {}
        self._count = 0
        self.setup = Slots(orders.limits.setup)
        self.running = Slots(orders.limits.running)
        self.grading = Slots(orders.limits.grade)

    async def begin(self) -> None:
        """Builds the policy."""
        made, orders = self._orders.make_policy(), self._orders
        self._runner = Runner(
            made, orders.sampling, orders.env_kwargs, orders.limits, orders.deadlines, make=orders.make
        )

    async def alive(self) -> None:
        """Answers as long as the event loop does."""

    async def play(self, ticket: int, request: RolloutRequest, number: int) -> Played:
        """An attempt to its end, or to where `stop` ends it."""
        assert self._runner is not None  # `begin` was first
        self._count += 1
        place = (0, 0.0, self._count)
        attempt = Attempt(self._runner, AttemptPlaces(self, lambda: place), request, number)
        self._playing[ticket] = task = asyncio.create_task(self._in_turn(attempt, lambda: place))
        try:
            await asyncio.wait({task})
            ended = attempt.trajectory(StopReason.CANCELLED) if task.cancelled() else task.result()
            return Played(ended, _portable(attempt.error), attempt.leaked)
        finally:
            del self._playing[ticket]

    async def stop(self, ticket: int) -> None:
        """Cancels an attempt, which frees what it holds before it ends."""
        if (task := self._playing.get(ticket)) is not None:
            task.cancel()

    async def close(self) -> None:
        """Lets the policy go."""
        if self._runner is not None:
            await self._runner.policy.aclose()

    async def _in_turn(self, attempt: Attempt, order: Callable[[], tuple[int, float, int]]) -> Trajectory:
        await self.setup.acquire(order)
        return await attempt.run()

    def wake(self) -> None:
        """Places are waited for; nobody has to be told."""

    def works(self, turn: Turn | None = None, tokens: int = 0) -> None:
        """The driver hears of it with the trajectory."""


def _portable(error: BaseException | None) -> BaseException | None:
    """An error that the driver can load; of one that doesn't pickle, what it says."""
    from ray import cloudpickle

    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:  # noqa: BLE001 - whatever its class does in there
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


@dataclass(frozen=True)
class Cluster:
    """Where workers live.

    Args:
        workers: how many; None for one a node.
        address: of the cluster, unless `ray.init` was called before. None starts one on this machine.
        worker_options: what Ray is asked for each, like {"num_cpus": 4, "resources": {"sandbox": 1}}.
        silent_s: a worker that does not answer for so many seconds is given up and replaced.
    """

    workers: int | None = None
    address: str | None = None
    worker_options: Mapping[str, Any] | None = None
    silent_s: float = 60.0


class Member:
    """A worker as the driver sees it."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.used = 0
        self.lost = asyncio.Event()

    async def play(self, ticket: int, request: RolloutRequest, number: int) -> Played:
        """An attempt's outcome.

        Raises:
            WorkerLost: the worker died.
        """
        try:
            played: Played = await _answer(self.handle.play.remote(ticket, request, number))
        except WorkerLost:
            self.lost.set()  # at once, lest it is given the same work again
            raise
        return played

    def stop(self, ticket: int) -> None:
        """Has an attempt cancelled; its outcome comes all the same."""
        self.handle.stop.remote(ticket)


class Workers:
    """The workers of a run, as a context: all of them are freed when it is left.

    Args:
        cluster: where they live.
        orders: what they are told.
        patience_s: how long there may be none at all before the run is aborted.
    """

    def __init__(self, cluster: Cluster, orders: Orders, patience_s: float) -> None:
        self._cluster = cluster
        self._orders = orders
        self._patience_s = patience_s
        self._ray = import_ray()
        self._members: list[Member] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._failure: Exception | None = None
        self._connected = False
        self._none_since = asyncio.get_running_loop().time()
        self.count = 0

    async def __aenter__(self) -> Self:
        if not self._ray.is_initialized():
            self._ray.init(address=self._cluster.address, log_to_driver=False)
            self._connected = True
        nodes = sum(1 for node in self._ray.nodes() if node["Alive"])
        self.count = nodes if self._cluster.workers is None else self._cluster.workers
        self._keepers = [asyncio.create_task(self._keep(), name=f"worker {i}") for i in range(self.count)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        try:
            await asyncio.gather(*self._keepers, return_exceptions=True)
        finally:
            if self._connected:
                self._ray.shutdown()

    async def take(self) -> Member:
        """A place at the worker that has the most left; waits for one.

        Raises:
            RunAborted: there has been no worker for too long.
            Exception: workers can't begin.
        """
        loop = asyncio.get_running_loop()
        while True:
            if self._failure is not None:
                raise self._failure
            there = (member for member in self._members if not member.lost.is_set())
            found = min(there, key=lambda member: member.used, default=None)
            if found is not None and found.used < self._orders.limits.live:
                found.used += 1
                return found
            if not self._members and loop.time() - self._none_since > self._patience_s:
                raise RunAborted(f"no worker for {self._patience_s:g} s: does the cluster have what they ask for?")
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await self._changed.wait()

    def give_back(self, member: Member) -> None:
        """A place is free again."""
        member.used -= 1
        self._changed.set()

    async def _keep(self) -> None:
        """Has one worker alive at all times, until cancelled."""
        while True:
            member = Member(self._make())
            try:
                await _answer(member.handle.begin.remote())
                self._members.append(member)
                self._changed.set()
                await self._watch(member)
            except WorkerLost as error:
                member.lost.set()
                _log.warning("a worker is lost, another one takes its place: %s", error)
            except Exception as error:  # noqa: BLE001 - told to whoever waits for a worker
                self._failure = error if isinstance(error, UserError) else RunAborted(f"workers can't begin: {error!r}")
                return
            finally:
                await self._part_with(member)
            await asyncio.sleep(AGAIN_S)

    def _make(self) -> Any:
        options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", **(self._cluster.worker_options or {})}
        # Beside the attempts, it answers the beat and orders to stop.
        actor = self._ray.remote(Worker).options(max_concurrency=2 * self._orders.limits.live + 8, **options)
        return actor.remote(self._orders)

    async def _watch(self, member: Member) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await member.lost.wait()
                    raise WorkerLost("it died with what it played")
            try:
                async with asyncio.timeout(self._cluster.silent_s):
                    await _answer(member.handle.alive.remote())
            except TimeoutError:
                raise WorkerLost(f"no sign of life for {self._cluster.silent_s:g} s") from None

    async def _part_with(self, member: Member) -> None:
        if member in self._members:
            self._members.remove(member)
            if not self._members:
                self._none_since = asyncio.get_running_loop().time()
        try:
            if not member.lost.is_set():
                with suppress(Exception):
                    async with asyncio.timeout(self._orders.deadlines.stop_s):
                        await _answer(member.handle.close.remote())
        finally:
            self._ray.kill(member.handle)


async def _answer(ref: Any) -> Any:
    """What a call to a worker gives.

    Raises:
        WorkerLost: the worker, its node or the answer is gone.
        Exception: what the call raised.
    """
    from ray.exceptions import RayError, RayTaskError

    try:
        return await asyncio.wrap_future(ref.future())
    except RayTaskError as error:
        raise error.cause from None
    except RayError as error:
        raise WorkerLost(f"{type(error).__name__}: {str(error).splitlines()[0]}") from None
