"""One run: draws requests, lets attempts begin and move from stage to stage, retries, accounts for all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeAlias

from skyrl_gym.errors import RunAborted, StopReason, UserError
from skyrl_gym.policy.base import ReportsLoad
from skyrl_gym.rollout.admission import admit_by_load
from skyrl_gym.rollout.attempt import Attempt, never_begun
from skyrl_gym.rollout.delivery import Delivery
from skyrl_gym.rollout.failures import Breaker, in_a_line, part_of
from skyrl_gym.rollout.intake import Requests, intake_of
from skyrl_gym.rollout.metrics import RunMetrics, Tally
from skyrl_gym.rollout.places import AttemptPlaces
from skyrl_gym.rollout.requests import RolloutRequest
from skyrl_gym.rollout.schedule import Backlog, Order, Slots, Waiting
from skyrl_gym.rollout.stage import all_ended, close_in_time
from skyrl_gym.rollout.trajectory import Trajectory, Turn
from skyrl_gym.rollout.watch import stuck_among, watch
from skyrl_gym.sandbox import SandboxPool

if TYPE_CHECKING:
    from skyrl_gym.rollout.runner import Runner

__all__ = ["Run"]

Attempts: TypeAlias = Callable[["Runner", AttemptPlaces, RolloutRequest, int], Attempt]
"""Makes attempts."""

_log = logging.getLogger(__name__)

BEHIND_S = 1.0
PREPARED = 8  # tasks whose prepared sandboxes are kept, to begin others with their files


class Run:
    """The state of one call of `Runner.run`, as a context: leaving it frees everything.

    All of it happens on one event loop. `_pump` is the only place that begins attempts; whatever may make
    room for one wakes it.
    """

    def __init__(self, runner: Runner, requests: Requests, attempt: Attempts = Attempt) -> None:
        limits = runner.limits
        self.runner = runner
        self._attempt = attempt
        self.delivery = Delivery(runner.journal, self.wake)
        self.setup = Slots(limits.setup)
        self.running = Slots(limits.running)
        self.grading = Slots(limits.grade)
        self._backlog = Backlog(runner.estimates, limits.close_groups_at)
        self._breaker = Breaker(runner.failures)
        self._tally = Tally()
        self._intake = intake_of(requests, self.wake)
        self._later: list[tuple[float, int, Waiting]] = []  # a heap: retries, by when they are due
        self._live: dict[asyncio.Task[None], Attempt] = {}
        self._numbers: dict[Attempt, int] = {}  # the attempts that have no outcome yet
        self._surplus: set[Attempt] = set()
        self._drawn = self._begun = 0
        self._changed = asyncio.Event()
        self._failure: Exception | None = None
        self._ending: StopReason | None = None
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._reported = (self._started, 0)
        # The setup stage works ahead already; what the attempts of a group share is what was prepared.
        self._sandboxes = SandboxPool(ready=0, most=PREPARED)
        self._supervisor: asyncio.Task[None] | None = None
        self._supervising = True

    async def __aenter__(self) -> Self:
        with self._sandboxes.in_use():
            self._supervisor = asyncio.create_task(self._supervise(), name="rollout")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
            await all_ended({self._supervisor})

    def raise_failure(self) -> None:
        """Raises why the run stopped before its end, if it did."""
        if isinstance(self._failure, (UserError, RunAborted)):
            raise self._failure
        if self._failure is not None:
            bug = self._failure
            raise RunAborted(f"stopped by a bug: {type(bug).__name__}: {bug}") from bug

    # ---- the run as a whole

    async def _supervise(self) -> None:
        """Works to the end, accounts for what is left, and says that nothing follows."""
        helpers = [
            asyncio.create_task(self._write(), name="journal"),
            asyncio.create_task(
                watch(self._live.values, self._tally, report=self._report, every_s=self.runner.metrics_every_s),
                name="watch",
            ),
        ]
        if isinstance(self.runner.policy, ReportsLoad):
            admitting = admit_by_load(self.runner.policy, self.running, self.runner.admission)
            helpers.append(asyncio.create_task(admitting, name="admission"))
        try:
            await self._work_within_the_clock()
        finally:
            await self._stop(helpers)
            self._account_for_the_rest()
            self._report()
            self.delivery.end()

    async def _work_within_the_clock(self) -> None:
        clock = asyncio.timeout(self.runner.deadlines.run_s)
        try:
            async with clock:
                await self._work()
        except TimeoutError:
            if not clock.expired():
                raise
            self._ending = StopReason.RUN_TIMEOUT
        except Exception as error:  # noqa: BLE001 - a stream of requests raised; told to the reader, who waits
            self._fail(error)

    async def _work(self) -> None:
        while not (self._ending or self._all_done()):
            self._changed.clear()
            self._pump()
            if self._ending or self._all_done():
                return
            await self._wait_for_change()

    def _all_done(self) -> bool:
        return self._intake.ended and not (self._backlog or self._later or self._live)

    async def _wait_for_change(self) -> None:
        """Waits until something has happened, or a retry or probe is due."""
        due = [self._later[0][0]] if self._later else []
        probe = self._breaker.next_probe()
        if probe is not None and probe > self._loop.time() and (self._backlog or self._later):
            due.append(probe)
        timer = self._loop.call_at(min(due), self.wake) if due else None
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def _stop(self, helpers: list[asyncio.Task[None]]) -> None:
        """Ends everything that runs, and keeps on disk what there was of it."""
        self._supervising = False
        for task in (*self._live, *helpers):
            task.cancel()
        # Attempts end within their own bounds, since teardown has a deadline and what hangs is left behind.
        await all_ended({*self._live, *helpers})
        await self._intake.aclose()
        closing = asyncio.create_task(self._sandboxes.close(), name="closing of the pool of sandboxes")
        clocks = self.runner.deadlines
        leaked, interrupted = await close_in_time(closing, clocks.teardown_s, stop_s=clocks.stop_s)
        self._tally.leaks += leaked
        cut = [a.trajectory(self._ending or StopReason.CANCELLED) for a in self._numbers if a.begun]
        try:
            self.delivery.flush(tuple(cut))
        except UserError as error:
            self._failure = self._failure or error
        if interrupted is not None:
            raise interrupted

    def _account_for_the_rest(self) -> None:
        """Every request that has no trajectory yet gets one; those of attempts are on disk already."""
        if self._ending is None:
            return
        for attempt in self._numbers:
            self._hand_over(attempt.trajectory(self._ending), keep=False)
        for _, _, waiting in self._later:
            self._backlog.wait(waiting)
        drawn = (waiting.request for waiting in self._backlog.drain())
        for request in chain(drawn, self._intake.rest()):
            self._hand_over(never_begun(request, self._ending, self.runner.policy.name), keep=False)

    def _hand_over(self, trajectory: Trajectory, *, keep: bool = True) -> None:
        self._tally.count(trajectory)
        self.delivery.put(trajectory, keep=keep)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._ending = self._ending or StopReason.CANCELLED
        self.wake()

    async def _write(self) -> None:
        try:
            await self.delivery.write()
        except UserError as error:
            self._fail(error)

    # ---- beginning

    def _pump(self) -> None:
        """Begins whatever may begin now."""
        self._look_after_the_machinery()
        while self._later and self._later[0][0] <= self._loop.time():
            self._backlog.wait(heappop(self._later)[2])
        self._draw()
        while self._ending is None and self._has_room() and (waiting := self._backlog.pop()) is not None:
            self._begin(waiting)
            self._draw()

    def _draw(self) -> None:
        """Keeps as many requests in sight as may live at once, to choose the next among them."""
        while not self._intake.ended and len(self._backlog) < self.runner.limits.live and self._reader_keeps_up():
            if (request := self._intake.draw()) is None:
                return
            if self._backlog.has_enough(request):
                self._hand_over(never_begun(request, StopReason.SURPLUS, self.runner.policy.name))
                continue
            self._backlog.draw(request, self._drawn)
            self._drawn += 1

    def _has_room(self) -> bool:
        """There is a place in the setup stage, and what is prepared there will have one to go to."""
        limits = self.runner.limits
        prepared = self.setup.used + self.running.waiting
        return (
            len(self._live) < limits.live
            and self.setup.free > 0
            and prepared < limits.ready + max(0, self.running.limit - self.running.used)
            and self._reader_keeps_up()
            and self._breaker.admits(self._loop.time())
        )

    def _reader_keeps_up(self) -> bool:
        return self.delivery.waiting < self.runner.limits.live

    def _begin(self, waiting: Waiting) -> None:
        self._begun += waiting.attempt == 0
        self.setup.take()
        places = AttemptPlaces(self, self.order(waiting))
        attempt = self._attempt(self.runner, places, waiting.request, waiting.attempt)
        self._numbers[attempt] = waiting.number
        probe = self._breaker.begin()
        task = asyncio.create_task(self._play(attempt, probe), name=f"task {waiting.request.task.id}")
        self._live[task] = attempt
        task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[None]) -> None:
        attempt = self._live.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(RunAborted(f"the runner itself failed: {error!r}"))
        elif self._ending is None and attempt in self._numbers and self._supervising:
            self._fail(RunAborted(f"{task.get_name()} was cancelled from inside"))
        self.wake()

    # ---- ending

    async def _play(self, attempt: Attempt, probe: bool) -> None:
        try:
            trajectory = await attempt.run()
        except asyncio.CancelledError:
            if attempt in self._surplus:
                self._finish(attempt, attempt.trajectory(StopReason.SURPLUS))
            raise
        finally:
            self._tally.leaks += attempt.leaked
        self._judge(attempt, trajectory, probe)

    def _judge(self, attempt: Attempt, trajectory: Trajectory, probe: bool) -> None:
        """Tries again, or finishes."""
        reason, error = trajectory.stop_reason, attempt.error
        down = self._hear_of_the_machinery(error, probe)
        if reason.retry and (down or self._may_retry(attempt)):
            self._again(attempt, trajectory, free=down)
            return
        if trajectory.valid:
            self.runner.estimates.learn(attempt.request, trajectory.seconds)
        self._finish(attempt, trajectory)
        if reason is StopReason.CRASH and isinstance(error, Exception):
            self._fail(error)
        elif self._mostly_fails():
            self._fail(RunAborted(f"too much of the machinery fails: {dict(self._tally.finished)}"))

    def _hear_of_the_machinery(self, error: BaseException | None, probe: bool) -> bool:
        """Notes what failed; gives whether that is down for everyone."""
        down = False
        if (part := part_of(error)) is not None:
            if self._breaker.fails(part, self._loop.time()):
                _log.warning("the %s is down, the run waits for it: %s", part, in_a_line(error))
            down = self._breaker.is_down(part)
        if probe:
            self._breaker.probe_ended(self._loop.time())
        return down

    def _may_retry(self, attempt: Attempt) -> bool:
        return attempt.number < self.runner.limits.retries and self.runner.failures.may_retry(
            self._tally.retries, self._begun
        )

    def _again(self, attempt: Attempt, trajectory: Trajectory, *, free: bool) -> None:
        """Puts a request back. What fails while a part is down for everyone costs no retry."""
        number, request, now = self._numbers.pop(attempt), attempt.request, self._loop.time()
        self._tally.retries += not free
        due = now + self.runner.failures.pause(attempt.number)
        if free and (probe := self._breaker.next_probe()) is not None:
            due = max(due, probe + BEHIND_S)  # so that another one is the next probe: this may be what always fails
        told = request.task.id, attempt.number + 1, trajectory.stop_reason, in_a_line(attempt.error), due - now
        _log.warning("%s, attempt %d: %s (%s); again in %.1f s", *told)
        heappush(self._later, (due, number, Waiting(request, number, attempt.number + (not free))))

    def _finish(self, attempt: Attempt, trajectory: Trajectory) -> None:
        del self._numbers[attempt]
        self._backlog.finish(attempt.request, valid=trajectory.valid)
        self._hand_over(trajectory)
        if trajectory.valid and self._backlog.has_enough(attempt.request):
            self._close_group(attempt.request)

    def _close_group(self, of: RolloutRequest) -> None:
        """Ends what is left of a group that has enough."""
        for waiting in self._take_waiting(of):
            self._backlog.finish(waiting.request, valid=False)
            self._hand_over(never_begun(waiting.request, StopReason.SURPLUS, self.runner.policy.name))
        for task, attempt in self._live.items():
            if attempt in self._numbers and attempt.request.group_key == of.group_key:
                self._surplus.add(attempt)
                task.cancel()

    def _take_waiting(self, of: RolloutRequest) -> list[Waiting]:
        later = [entry for entry in self._later if entry[2].request.group_key == of.group_key]
        for entry in later:
            self._later.remove(entry)
        heapify(self._later)
        return [*self._backlog.drop_group(of), *(waiting for _, _, waiting in later)]

    # ---- the machinery

    def _look_after_the_machinery(self) -> None:
        if (part := self._breaker.given_up(self._loop.time())) is not None:
            down_s = self.runner.failures.give_up_s
            self._fail(RunAborted(f"the {part} has been down for more than {down_s:g} s; run again to go on"))

    def _mostly_fails(self) -> bool:
        finished = self._tally.finished
        failed = sum(count for reason, count in finished.items() if StopReason(reason).retry)
        return self.runner.failures.verdict(failed, finished.total())

    # ---- what attempts ask and tell

    def order(self, waiting: Waiting) -> Callable[[], Order]:
        """Where a request stands among those that wait for a place, whenever it is asked."""
        return lambda: self._backlog.order(waiting.request, waiting.number)

    def wake(self) -> None:
        """Something has made room, or has ended."""
        self._changed.set()

    def works(self, turn: Turn | None = None, tokens: int = 0) -> None:
        """A part of the machinery did its work: the policy where there is a turn, else the sandbox."""
        if turn is None:
            self._breaker.works("sandbox")
            return
        self._breaker.works("policy")
        self._tally.turns += 1
        self._tally.tokens += tokens

    def _report(self) -> None:
        now = self._loop.time()
        before, tokens_before = self._reported
        tally, self._reported = self._tally, (now, self._tally.tokens)
        self.runner.on_metrics(
            RunMetrics(
                seconds=now - self._started,
                finished=dict(tally.finished),
                retries=tally.retries,
                live=len(self._live),
                setup=self.setup.used,
                ready=self.running.waiting,
                run=self.running.used,
                grading_next=self.grading.waiting,
                grade=self.grading.used,
                pending=len(self._backlog) + len(self._later),
                unread=self.delivery.waiting,
                run_places=self.running.limit,
                turns=tally.turns,
                tokens=tally.tokens,
                tokens_per_s=(tally.tokens - tokens_before) / (now - before) if now > before else 0.0,
                stage_s=tally.mean_stage_s(),
                loop_lag_s=tally.loop_lag_s,
                leaks=tally.leaks,
                down=self._breaker.down,
                stuck=stuck_among(self._live.values(), now),
            )
        )
