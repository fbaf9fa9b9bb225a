"""`Alarm` is `asyncio.timeout` without its timers."""

import asyncio
from typing import Any

import pytest

from skyrl_gym.alarm import Alarm
from skyrl_gym.rollout.virtual import run_virtual


def now() -> float:
    return asyncio.get_running_loop().time()


def test_what_takes_too_long_is_cancelled_on_time() -> None:
    async def late() -> float:
        alarm = Alarm()
        with pytest.raises(TimeoutError), alarm.after(5):
            await asyncio.sleep(60)
        assert alarm.rang
        return now()

    assert run_virtual(late()) == 5


def test_one_that_was_in_time_leaves_the_next_its_whole_time() -> None:
    async def twice() -> float:
        alarm = Alarm()
        with alarm.after(5):
            await asyncio.sleep(4)
        assert not alarm.rang
        with pytest.raises(TimeoutError), alarm.after(5):
            await asyncio.sleep(60)
        return now()

    assert run_virtual(twice()) == 9


def test_a_shorter_time_after_a_longer_one_is_kept() -> None:
    async def shorter() -> float:
        alarm = Alarm()
        with alarm.after(600):
            await asyncio.sleep(1)
        with pytest.raises(TimeoutError), alarm.after(2):
            await asyncio.sleep(60)
        return now()

    assert run_virtual(shorter()) == 3


def test_it_rings_for_nobody_between_two_things() -> None:
    async def pause() -> None:
        alarm = Alarm()
        with alarm.after(1):
            pass
        await asyncio.sleep(60)
        with alarm.after(1):
            await asyncio.sleep(0.5)
        assert not alarm.rang

    run_virtual(pause())


def test_a_timeout_and_a_cancellation_of_somebody_elses_stay_what_they_are() -> None:
    async def others(raised: type[BaseException]) -> bool:
        alarm = Alarm()
        with pytest.raises(raised), alarm.after(5):
            raise raised
        return alarm.rang

    assert not run_virtual(others(TimeoutError))
    assert not run_virtual(others(asyncio.CancelledError))


def test_a_cancellation_from_outside_at_the_same_moment_wins() -> None:
    async def both() -> bool:
        async def inside() -> None:
            with Alarm().after(5):
                await asyncio.sleep(60)

        task = asyncio.create_task(inside())
        await asyncio.sleep(5)
        task.cancel()
        await asyncio.wait({task})
        return task.cancelled()

    assert run_virtual(both())


def test_what_ignores_it_is_told_apart_by_that_it_rang() -> None:
    async def deaf() -> Any:
        alarm = Alarm()
        with alarm.after(5):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(1)
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
        return alarm.rang

    assert run_virtual(deaf())


def test_two_things_at_a_time_are_refused() -> None:
    async def two() -> None:
        alarm = Alarm()
        with alarm.after(5), pytest.raises(RuntimeError, match="one thing at a time"), alarm.after(5):
            pass

    run_virtual(two())


def test_nothing_is_left_on_the_loop_once_it_is_closed() -> None:
    async def close() -> None:
        alarm = Alarm()
        with alarm.after(1_000):
            pass
        alarm.close()
        await asyncio.sleep(1)

    run_virtual(close())


def test_it_rings_on_another_loop_than_the_one_before() -> None:
    alarm = Alarm()

    async def briefly() -> None:
        with alarm.after(5):
            await asyncio.sleep(1)

    async def late() -> float:
        with pytest.raises(TimeoutError), alarm.after(10):
            await asyncio.sleep(60)
        return now()

    run_virtual(briefly())
    assert run_virtual(late()) == 10


def test_what_has_no_limit_is_let_be() -> None:
    async def unlimited() -> None:
        alarm = Alarm()
        with alarm.after(1):
            pass
        with alarm.after(None):
            await asyncio.sleep(1e6)

    run_virtual(unlimited())
