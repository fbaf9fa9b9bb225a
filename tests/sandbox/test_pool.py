"""Sandboxes started ahead of time."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.errors import SandboxError
from skyrl_gym.sandbox import (
    Ledger,
    Mount,
    Preparation,
    Sandbox,
    SandboxPool,
    SandboxSpec,
    bubblewrap_problem,
    pool_in_use,
    to_be_asked_again,
)

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
            last = await pool.take(SandboxSpec())
        assert ledger.live == 1  # the last is the caller's
        assert (await last.exec("ls", timeout_s=5)).text == ""
        await last.close()

    asyncio.run(main())
    assert ledger.live == 0


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
            dead: Any = next(iter(pool._kinds.values())).ready[0][0]
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


def counted(done: list[str], name: str = "a", *, fails: int = 0, takes_s: float = 0.05) -> Preparation[int]:
    """Writes a file; gives which time it was."""

    async def work(box: Sandbox) -> int:
        done.append(name)
        await asyncio.sleep(takes_s)
        if len(done) <= fails:
            raise SandboxError("not this time")
        await box.write("prepared", name.encode())
        return len(done)

    return Preparation(name, work)


def test_what_is_prepared_once_is_there_for_all_who_wait_for_it(ledger: Ledger) -> None:
    done: list[str] = []

    async def main() -> None:
        async with SandboxPool(ready=0, ledger=ledger) as pool:
            taken = await asyncio.gather(*(pool.take_prepared(SandboxSpec(), counted(done)) for _ in range(4)))
            assert done == ["a"]
            await taken[0][0].write("prepared", b"changed")
            assert [await box.read("prepared") for box, _ in taken] == [b"changed", b"a", b"a", b"a"]
            assert [value for _, value in taken] == [1, 1, 1, 1]
            assert (pool.kept, pool.ready) == (1, 0)
            for box, _ in taken:
                await box.close()

    asyncio.run(main())
    assert ledger.live == 0


def test_what_is_asked_for_once_is_neither_kept_nor_started_ahead(ledger: Ledger) -> None:
    async def main() -> None:
        async with SandboxPool(ready=2, ledger=ledger) as pool:
            box, _ = await pool.take_prepared(SandboxSpec(), counted([]))
            await box.close()
            await (await pool.take(SandboxSpec())).close()
            assert (pool.kept, pool.ready, ledger.created) == (0, 0, 2)

    asyncio.run(main())


def test_what_will_be_asked_for_again_is_kept_from_the_first_time_on(ledger: Ledger) -> None:
    done: list[str] = []

    async def main() -> None:
        async with SandboxPool(ready=0, ledger=ledger) as pool:
            for _ in range(3):
                with to_be_asked_again():
                    box, value = await pool.take_prepared(SandboxSpec(), counted(done))
                assert (value, await box.read("prepared")) == (1, b"a")
                await box.close()
            with to_be_asked_again(again=False):
                box, _ = await pool.take_prepared(SandboxSpec(), counted(done, "b"))
            await box.close()
            assert (done, pool.kept) == (["a", "b"], 1)

    asyncio.run(main())
    assert ledger.live == 0


def test_prepared_files_are_kept_of_so_many_kinds(ledger: Ledger) -> None:
    async def main() -> None:
        async with SandboxPool(ready=0, most=2, ledger=ledger) as pool:
            for name in "abcd":
                for _ in range(2):
                    box, _ = await pool.take_prepared(SandboxSpec(), counted([], name))
                    await box.close()
            assert pool.kept == 2
            done: list[str] = []
            box, _ = await pool.take_prepared(SandboxSpec(), counted(done, "d"))
            assert (done, await box.read("prepared")) == ([], b"d")
            await box.close()

    asyncio.run(main())
    assert ledger.live == 0


def test_a_preparation_that_fails_or_is_cancelled_leaves_the_work_to_the_next(ledger: Ledger) -> None:
    done: list[str] = []
    preparation = counted(done, fails=1)

    async def main() -> None:
        async with SandboxPool(ready=0, ledger=ledger) as pool:
            asked = [asyncio.create_task(pool.take_prepared(SandboxSpec(), preparation)) for _ in range(4)]
            await asyncio.wait({asked[0]})
            await asyncio.sleep(0)
            asked[1].cancel()
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert isinstance(found[0], SandboxError) and isinstance(found[1], asyncio.CancelledError)
            for box, value in found[2:]:  # type: ignore[misc]
                assert (value, await box.read("prepared")) == (len(done), b"a")
                await box.close()

    asyncio.run(main())
    assert ledger.live == 0


def test_it_is_in_use_where_it_was_said_and_in_tasks_that_were_begun_there(ledger: Ledger) -> None:
    async def found() -> SandboxPool | None:
        return pool_in_use()

    async def main() -> None:
        async with SandboxPool(ledger=ledger) as pool:
            with pool.in_use():
                begun = asyncio.create_task(found())
            assert (await begun, await found()) == (pool, None)

    asyncio.run(main())
