"""Places in a stage: none is lost, none is given twice."""

import asyncio

from skyrl_gym.rollout.schedule import Slots


def test_a_place_that_comes_together_with_a_cancellation_goes_to_the_next() -> None:
    async def main() -> None:
        slots = Slots(1)
        await slots.acquire(lambda: (0, 0.0, 0))
        first = asyncio.create_task(slots.acquire(lambda: (0, 0.0, 1)))
        second = asyncio.create_task(slots.acquire(lambda: (0, 0.0, 2)))
        await asyncio.sleep(0)
        slots.release()  # the first gets it, and is cancelled before it knows
        first.cancel()
        async with asyncio.timeout(60):
            await second
        assert first.cancelled() and slots.used == 1 and slots.waiting == 0

    asyncio.run(main())
