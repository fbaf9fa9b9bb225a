"""From a finished trajectory to whoever reads the run: on disk first, then handed over, at the reader's pace."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from skyrl_gym.errors import UserError
from skyrl_gym.rollout.journal import Journal
from skyrl_gym.rollout.stage import outlast
from skyrl_gym.rollout.trajectory import Trajectory

__all__ = ["Delivery"]

DISK_S = 600.0


class Delivery:
    """Writes what has gathered in one go, so that many trajectories share one wait for the disk.

    Args:
        journal: where trajectories are kept, or None.
        on_taken: called when the reader has taken one, since there is room for more then.
    """

    def __init__(self, journal: Journal | None, on_taken: Callable[[], None]) -> None:
        self._journal = journal
        self._on_taken = on_taken
        self._finished: list[Trajectory] = []
        self._ready: deque[Trajectory | None] = deque()
        self._more = asyncio.Event()
        self._readable = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Finished trajectories that the reader has not taken."""
        return len(self._finished) + len(self._ready)

    def put(self, trajectory: Trajectory, *, keep: bool = True) -> None:
        """Takes a finished trajectory over; one that is not to be kept is handed over unwritten."""
        if self._journal is None or not keep:
            self._hand_over(trajectory)
            return
        self._finished.append(trajectory)
        self._more.set()

    async def write(self) -> None:
        """Writes until cancelled.

        Raises:
            UserError: the disk doesn't take it, or takes for ever.
        """
        while True:
            await self._more.wait()
            self._more.clear()
            batch = tuple(self._finished)
            writing = asyncio.create_task(asyncio.to_thread(self._append, batch))
            interrupted = await outlast(writing, DISK_S)  # a thread can't be stopped: it would write beside `flush`
            if not writing.done():
                raise UserError(f"writing the journal takes longer than {DISK_S:g} s: is the disk there?")
            writing.result()
            self._pass_on(len(batch))
            if interrupted is not None:
                raise interrupted

    def flush(self, partial: tuple[Trajectory, ...] = ()) -> None:
        """Writes what is left, and `partial` traces that nobody will read now.

        Raises:
            UserError: the disk doesn't take it.
        """
        if self._finished or partial:
            self._append((*self._finished, *partial))
            self._pass_on(len(self._finished))

    def end(self) -> None:
        """Nothing follows."""
        self._ready.append(None)
        self._readable.set()

    async def take(self) -> Trajectory | None:
        """The next one, or None after the last."""
        while not self._ready:
            self._readable.clear()
            await self._readable.wait()
        self._on_taken()
        return self._ready.popleft()

    def _pass_on(self, count: int) -> None:
        for trajectory in self._finished[:count]:
            self._hand_over(trajectory)
        del self._finished[:count]

    def _hand_over(self, trajectory: Trajectory) -> None:
        self._ready.append(trajectory)
        self._readable.set()

    def _append(self, batch: tuple[Trajectory, ...]) -> None:
        if (journal := self._journal) is None:
            return
        try:
            journal.append(*batch)
        except OSError as error:
            self._journal = None  # what did not fit would be written twice
            raise UserError(
                f"can't write the journal {journal.path}: {error.strerror}; what was finished before is kept"
            ) from error
