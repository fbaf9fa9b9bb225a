"""Sandboxes started ahead of time."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.errors import SandboxError
from skyrl_gym.sandbox import Ledger, Mount, SandboxPool, SandboxSpec, bubblewrap_problem

pytestmark = pytest.mark.skipif(bubblewrap_problem() is not None, reason=bubblewrap_problem() or "")


def test_each_is_given_out_once_and_replaced(ledger: Ledger) -> None:
    async def main() -> None:
        async with SandboxPool(ready=2, ledger=ledger) as pool:
            await pool.warm(SandboxSpec())
            assert (pool.ready, ledger.live) == (2, 2)
            taken = [await pool.take(SandboxSpec()) for _ in range(5)]
            assert len(set(map(id, taken))) == 5
            for number, box in enumerate(taken):
                await box.write("mine", str(number).encode())
            assert [await box.read("mine") for box in taken] == [b"0", b"1", b"2", b"3", b"4"]
            await asyncio.gather(*(box.close() for box in taken))
            await pool.warm(SandboxSpec())
            assert (await (await pool.take(SandboxSpec())).exec("ls", timeout_s=5)).text == ""

    asyncio.run(main())
    assert ledger.live == 1  # the last, which was the caller's


def test_they_are_kept_by_what_they_are_made_from_and_the_oldest_kind_goes_first(
    ledger: Ledger, open_folder: Path
) -> None:
    (open_folder / "file").write_text("1")
    kinds = [
        SandboxSpec(),
        SandboxSpec(env={"A": "1"}),
        SandboxSpec(mounts=(Mount(str(open_folder), "/work", "private"),)),
    ]

    async def main() -> None:
        async with SandboxPool(ready=2, most=4, ledger=ledger) as pool:
            for spec in kinds:
                await pool.warm(spec)
            assert pool.ready == 4
            for spec, said in ((kinds[2], "1 x\n"), (kinds[1], " 1x\n")):
                async with await pool.take(spec) as box:
                    told = await box.exec("cat file 2>/dev/null; echo ' '$A'x' | tr -s ' '", timeout_s=5)
                    assert told.text == said

    asyncio.run(main())
    assert ledger.live == 0


def test_one_that_died_while_it_waited_is_not_given_out(ledger: Ledger) -> None:
    async def main() -> None:
        async with SandboxPool(ready=1, ledger=ledger) as pool:
            await pool.warm(SandboxSpec())
            dead: Any = next(iter(pool._ready.values()))[0]
            os.kill(dead._holder.init, signal.SIGKILL)
            await asyncio.sleep(0.1)
            async with await pool.take(SandboxSpec()) as box:
                assert box is not dead
                assert (await box.exec("echo alive", timeout_s=5)).text == "alive\n"

    asyncio.run(main())
    assert ledger.live == 0


def test_what_can_not_be_started_is_told_to_who_asks(ledger: Ledger, tmp_path: Path) -> None:
    async def main() -> None:
        spec = SandboxSpec(mounts=(Mount(str(tmp_path / "none"), "/x"),))
        async with SandboxPool(ledger=ledger) as pool:
            for ask in (pool.warm, pool.take):
                with pytest.raises(SandboxError, match="no such folder"):
                    await ask(spec)
        with pytest.raises(SandboxError, match="closed"):
            await pool.take(SandboxSpec())

    asyncio.run(main())
    assert ledger.live == 0


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.03, 0.1])
def test_a_pool_that_is_closed_while_it_fills_leaves_nothing(ledger: Ledger, delay_s: float) -> None:
    async def main() -> None:
        async with SandboxPool(ready=4, ledger=ledger) as pool:
            warming = asyncio.create_task(pool.warm(SandboxSpec()))
            await asyncio.sleep(delay_s)
        with suppress(asyncio.CancelledError, SandboxError):  # a quick machine is done before
            await warming

    asyncio.run(main())
    assert ledger.live == 0
    assert ledger.created == ledger.destroyed
