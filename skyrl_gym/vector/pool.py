"""What is in flight in a vector, and what has arrived: all on one event loop, whoever asks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from skyrl_gym.background import BackgroundLoop
from skyrl_gym.errors import MessageError
from skyrl_gym.spaces import Action
from skyrl_gym.vector.slot import Arrival, Slot

__all__ = ["Pool"]


class Pool:
    """Runs work on slots, at most one piece a slot until its outcome is taken.

    What is kept here is touched on the event loop alone, so that any thread may send and receive.
    """

    def __init__(self, slots: Sequence[Slot], name: str) -> None:
        self._slots = slots
        self._loop = BackgroundLoop(name)
        self._flying: dict[int, asyncio.Task[Arrival]] = {}
        self._landed: dict[int, asyncio.Task[Arrival]] = {}  # in the order of their arrival
        self._changed = asyncio.Event()

    def reset(self, wanted: Mapping[int, tuple[int | None, Mapping[str, Any]]], *, alone: bool = False) -> None:
        """Begins episodes, by number with a seed and options, and does not wait for them.

        Raises:
            MessageError: a slot's last outcome has not been taken, or with `alone` any slot's. Nothing is begun.
        """

        async def begin() -> None:
            self._check_idle(range(len(self._slots)) if alone else wanted)
            for number, (seed, options) in wanted.items():
                self._begin(number, self._slots[number].reset(seed, options))

        self._loop.run(begin())

    def step(self, actions: Mapping[int, Action]) -> None:
        """Begins steps, by number, and does not wait for them.

        Raises:
            MessageError: a slot's last outcome has not been taken, or it must be reset first. Nothing is begun.
        """

        async def begin() -> None:
            self._check_idle(actions)
            for number in actions:
                if (hindrance := self._slots[number].hindrance) is not None:
                    raise MessageError(f"environment {number} {hindrance}: reset it first")
            for number, action in actions.items():
                self._begin(number, self._slots[number].step(action))

        self._loop.run(begin())

    def take(self, least: int, timeout_s: float | None = None) -> list[Arrival]:
        """Everything that has arrived, once there are `least` or after `timeout_s` seconds.

        Raises:
            MessageError: fewer than `least` are in flight, so that they would never come.
            Exception: what a piece of work raised; the rest stays here to be taken.
        """
        return self._loop.run(self._take(least, timeout_s))

    def drop(self) -> None:
        """Cancels what is in flight, and forgets what has arrived."""
        self._loop.run(self._drop())

    def close(self) -> None:
        """Drops everything, frees every slot, and ends the loop."""
        try:
            self._loop.run(self._close())
        finally:
            self._loop.close()

    def _check_idle(self, numbers: Iterable[int]) -> None:
        if busy := sorted(set(numbers) & (self._flying.keys() | self._landed.keys())):
            raise MessageError(f"environments {busy} have results to come: recv() them first, or reset() all")

    def _begin(self, number: int, work: Coroutine[Any, Any, Arrival]) -> None:
        self._flying[number] = task = asyncio.create_task(work, name=f"environment {number}")
        task.add_done_callback(lambda done: self._land(number, done))

    def _land(self, number: int, task: asyncio.Task[Arrival]) -> None:
        del self._flying[number]
        self._landed[number] = task
        self._changed.set()

    async def _take(self, least: int, timeout_s: float | None) -> list[Arrival]:
        if least > (coming := len(self._flying) + len(self._landed)):
            raise MessageError(f"{least} results are asked for, and {coming} are to come: send() first")
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while len(self._landed) < least:
                    self._changed.clear()
                    await self._changed.wait()
        for number, task in self._landed.items():
            if task.cancelled() or task.exception() is not None:
                return [self._landed.pop(number).result()]  # raises
        arrived = [task.result() for task in self._landed.values()]
        self._landed.clear()
        return arrived

    async def _drop(self) -> None:
        flying = tuple(self._flying.values())
        for task in flying:
            task.cancel()
        await asyncio.gather(*flying, return_exceptions=True)
        for task in self._landed.values():
            if not task.cancelled():
                task.exception()  # so that asyncio does not complain that nobody looked
        self._landed.clear()

    async def _close(self) -> None:
        await self._drop()
        await asyncio.gather(*(slot.aclose() for slot in self._slots))
