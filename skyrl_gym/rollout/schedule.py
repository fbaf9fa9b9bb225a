"""Who goes first: groups that are nearly complete, then what is expected to take longest."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from skyrl_gym.rollout.requests import RolloutRequest

__all__ = ["Backlog", "Estimates", "Order", "Slots", "Waiting"]

Order: TypeAlias = tuple[int, float, int]
"""The smallest goes first."""
_Key: TypeAlias = tuple[str, str]

LOOK_AHEAD = 64
KNOWN_TASKS = 10_000


@dataclass
class _Mean:
    count: int = 0
    value: float = 0.0

    def add(self, sample: float) -> None:
        self.count += 1
        # Moves on at last with a tenth of each sample: a policy under training changes what a task takes.
        self.value += (sample - self.value) / min(self.count, 10)


class Estimates:
    """How long a trajectory will take, learned from those before: by task, else by environment.

    Keep one for the life of a runner. It remembers the last 10,000 tasks.
    """

    def __init__(self) -> None:
        self._tasks: OrderedDict[tuple[str, str], _Mean] = OrderedDict()
        self._envs: defaultdict[str, _Mean] = defaultdict(_Mean)

    def learn(self, request: RolloutRequest, seconds: Mapping[str, float]) -> None:
        """Notes the seconds that each stage took."""
        total = sum(seconds.values())
        self._envs[request.env_id].add(total)
        key = (request.env_id, request.task.hash)
        mean = self._tasks.setdefault(key, _Mean())
        mean.add(total)
        self._tasks.move_to_end(key)
        if len(self._tasks) > KNOWN_TASKS:
            self._tasks.popitem(last=False)

    def expected(self, request: RolloutRequest) -> float:
        """Seconds, 0 where nothing is known."""
        mean = self._tasks.get((request.env_id, request.task.hash)) or self._envs.get(request.env_id)
        return 0.0 if mean is None else mean.value


@dataclass
class _Group:
    """`waiting` are the numbers of the requests that nobody works on."""

    drawn: int = 0
    begun: int = 0
    finished: int = 0
    valid: int = 0
    waiting: deque[Waiting] = field(default_factory=deque)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that waits for an attempt: the first (0), or one more after a failure."""

    request: RolloutRequest
    number: int
    attempt: int = 0


class Backlog:
    """The requests in sight, by group, and how far each group is. Groups without a request left are forgotten.

    Args:
        estimates: of how long a request takes.
        close_at: how many valid trajectories are enough for a group; None where a group has no end before its own.
    """

    def __init__(self, estimates: Estimates, close_at: int | None = None) -> None:
        self._estimates = estimates
        self._close_at = close_at
        self._closed: set[_Key] = set()  # also those that are forgotten: more of them may be drawn
        self._groups: dict[_Key, _Group] = {}
        self._begun: dict[_Key, None] = {}  # groups that have begun and have something waiting, in that order
        self._fresh: dict[_Key, None] = {}  # those that have not begun
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def draw(self, request: RolloutRequest, number: int) -> None:
        """A request has come in."""
        self._of(request).drawn += 1
        self.wait(Waiting(request, number))

    def wait(self, waiting: Waiting) -> None:
        """A request waits for an attempt."""
        group = self._of(waiting.request)
        group.waiting.append(waiting)
        (self._begun if group.begun else self._fresh)[waiting.request.group_key] = None
        self._size += 1

    def pop(self) -> Waiting | None:
        """The request that should be worked on next: it has begun now."""
        if (key := self._next_group()) is None:
            return None
        group = self._groups[key]
        found = group.waiting.popleft()
        group.begun += 1
        self._size -= 1
        self._fresh.pop(key, None)
        if group.waiting:
            self._begun[key] = None
        else:
            self._begun.pop(key, None)
        return found

    def finish(self, request: RolloutRequest, *, valid: bool) -> None:
        """A request has its trajectory."""
        group = self._of(request)
        group.finished += 1
        group.valid += valid
        if self._close_at is not None and group.valid >= self._close_at:
            self._closed.add(request.group_key)
        if group.finished == group.drawn:
            del self._groups[request.group_key]

    def has_enough(self, request: RolloutRequest) -> bool:
        """The group of a request is closed."""
        if request.group_key in self._closed:
            return True
        return self._close_at is not None and request.group_valid >= self._close_at

    def drop_group(self, request: RolloutRequest) -> list[Waiting]:
        """Takes out what waits of a request's group."""
        key = request.group_key
        group = self._groups.get(key)
        if group is None:
            return []
        dropped = list(group.waiting)
        group.waiting.clear()
        self._size -= len(dropped)
        self._begun.pop(key, None)
        self._fresh.pop(key, None)
        return dropped

    def drain(self) -> list[Waiting]:
        """Takes everything out, in the order in which it came in."""
        found = [waiting for group in self._groups.values() for waiting in group.waiting]
        self._groups, self._begun, self._fresh, self._size = {}, {}, {}, 0
        return sorted(found, key=lambda waiting: waiting.number)

    def order(self, request: RolloutRequest, number: int) -> Order:
        """Where a begun request stands: the group with the least left first, then the longest, then the first."""
        group = self._of(request)
        return (group.drawn - group.finished, -self._estimates.expected(request), number)

    def _next_group(self) -> _Key | None:
        if self._begun:
            return min(self._begun, key=self._order_of)
        return min(islice(self._fresh, LOOK_AHEAD), key=self._longest_first, default=None)

    def _order_of(self, key: _Key) -> Order:
        first = self._groups[key].waiting[0]
        return self.order(first.request, first.number)

    def _longest_first(self, key: _Key) -> float:
        return -self._estimates.expected(self._groups[key].waiting[0].request)

    def _of(self, request: RolloutRequest) -> _Group:
        return self._groups.setdefault(request.group_key, _Group(valid=request.group_valid))


class Slots:
    """Places in a stage. Who waits is let in by an order that is looked up when a place is free."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: dict[asyncio.Future[None], Callable[[], Order]] = {}

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return len(self._waiting)

    @property
    def free(self) -> int:
        """Places that nobody has or waits for."""
        return self.limit - self.used - self.waiting

    def take(self) -> None:
        """Takes a place that is known to be free."""
        self.used += 1

    async def acquire(self, order: Callable[[], Order]) -> None:
        """Waits for a place; `release` gives it back."""
        if self.free > 0:
            self.take()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = order
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting.pop(turn, None)
            if not turn.cancelled():
                self.release()  # the place came together with the cancellation
            raise

    def release(self) -> None:
        """Gives a place back."""
        self.used -= 1
        self._let_in()

    def resize(self, limit: int) -> None:
        """Changes the number of places; nobody is thrown out."""
        self.limit = limit
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self.used < self.limit:
            turn = min(islice(self._waiting, LOOK_AHEAD), key=lambda waiter: self._waiting[waiter]())
            del self._waiting[turn]
            if not turn.done():
                self.take()
                turn.set_result(None)
