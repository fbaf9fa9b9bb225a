"""The sandbox in memory."""

import asyncio
from typing import Any

import pytest

from skyrl_gym.errors import SandboxError, SandboxLost
from skyrl_gym.sandbox import ExecResult, FakeSandbox, Sandbox, SandboxSpec


def test_commands_are_answered_and_remembered() -> None:
    async def main() -> None:
        async with FakeSandbox(lambda line: ExecResult(line.encode(), 3)) as box:
            assert isinstance(box, Sandbox)
            assert (await box.exec(["echo", "a b"], timeout_s=1)).text == "echo 'a b'"
            assert (await (await box.shell()).run("ls", timeout_s=1)).code == 3
            assert box.commands == ["echo 'a b'", "ls"]

    asyncio.run(main())


def test_output_is_capped() -> None:
    result = asyncio.run(FakeSandbox(lambda line: ExecResult(b"x" * 1_000, 0)).exec("a", timeout_s=1, max_bytes=100))
    assert result.dropped_bytes == 900
    assert len(result.output) < 200


def test_files_are_found_by_relative_and_absolute_path() -> None:
    async def main() -> None:
        box = FakeSandbox(files={"/work/a/b": b"1"}, spec=SandboxSpec(workdir="/work"))
        await box.write("c", b"22")
        assert (await box.read("a/b"), await box.read("/work/c"), await box.read("./a/../c")) == (b"1", b"22", b"22")
        for use, error in (
            (box.read("none"), FileNotFoundError),
            (box.read("a"), IsADirectoryError),
            (box.write("a", b""), IsADirectoryError),
            (box.read("c", max_bytes=1), SandboxError),
        ):
            with pytest.raises(error):
                await use

    asyncio.run(main())


@pytest.mark.parametrize("kth", [1, 2, 3])
def test_it_dies_at_the_use_that_it_is_told(kth: int) -> None:
    async def main() -> int:
        box = FakeSandbox(dies_at=kth)
        uses: list[Any] = [lambda: box.exec("a", timeout_s=1), lambda: box.write("f", b""), lambda: box.read("f")]
        for done, use in enumerate(uses):
            try:
                await use()
            except SandboxLost:
                return done + 1
        return 0

    assert asyncio.run(main()) == kth


def test_a_closed_one_is_lost() -> None:
    async def main() -> None:
        async with FakeSandbox() as box:
            pass
        with pytest.raises(SandboxLost, match="closed"):
            await box.exec("a", timeout_s=1)

    asyncio.run(main())
