"""Snapshots, forks, and folders up and down."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.errors import ConfigError, SandboxError
from skyrl_gym.sandbox.base import Mount, SandboxSpec
from skyrl_gym.sandbox.ledger import Ledger
from skyrl_gym.sandbox.testing.harness import Harness

__all__ = ["SnapshotTests"]

CHANGES = (
    "echo more >> a; rm -r folder; mkdir folder; echo new > folder/new; ln -s a link; mkdir -m 000 shut; mkfifo pipe"
)
LISTED = "find . 2>/dev/null | sort; cat a folder/*"
CHANGED = "\n".join([".", "./a", "./folder", "./folder/new", "./link", "./pipe", "./shut", "host", "more", "new", ""])


async def listed(box: Any) -> str:
    """What is there."""
    return str((await box.exec(LISTED, timeout_s=10)).text)


class SnapshotTests(Harness):
    """Of a backend."""

    @pytest.fixture
    def repository(self, open_folder: Path) -> SandboxSpec:
        (open_folder / "folder").mkdir()
        (open_folder / "folder" / "old").write_text("old\n")
        (open_folder / "a").write_text("host\n")
        return self.made_like(SandboxSpec(mounts=(Mount(str(open_folder), "/work", "private"),)))

    def test_a_snapshot_brings_back_what_was_written_removed_and_made_anew(
        self, in_sandbox: Any, repository: Any
    ) -> None:
        async def work(box: Any) -> None:
            await box.exec(CHANGES, timeout_s=10)
            async with await box.snapshot() as snapshot:
                for _ in range(2):
                    await box.exec("rm -rf folder link pipe; echo lost > a; touch extra", timeout_s=10)
                    await box.restore(snapshot)
                    assert await listed(box) == CHANGED

        in_sandbox(work, repository)

    def test_a_layer_holds_what_was_written_and_only_an_inspection_sees_it(
        self, in_sandbox: Any, repository: Any
    ) -> None:
        async def work(box: Any) -> None:
            layer = box.layer("/work")
            assert box.layer("/work/folder") is None
            if layer is None:
                pytest.skip("this backend keeps no layer")

            async def written() -> list[str]:
                found = await box.inspect(["find", layer, "-mindepth", "1", "-printf", "%y %P\n"], timeout_s=10)
                return sorted(found.text.splitlines())

            assert await written() == []
            await box.exec("echo more >> a; rm folder/old; mkdir new; touch new/file", timeout_s=10)
            assert await written() == ["c folder/old", "d folder", "d new", "f a", "f new/file"]
            async with await box.snapshot() as snapshot:
                await box.restore(snapshot)
            assert await written() == ["c folder/old", "d folder", "d new", "f a", "f new/file"]
            assert (await box.inspect(["touch", f"{layer}/forbidden"], timeout_s=10)).code != 0
            for look in (box.exec, (await box.shell()).run):
                assert (await look(f"ls {layer}", timeout_s=10)).code != 0

        in_sandbox(work, repository)

    def test_branches_of_a_fork_do_not_see_each_other(self, in_sandbox: Any, repository: Any, ledger: Ledger) -> None:
        async def work(box: Any) -> None:
            await box.exec(CHANGES, timeout_s=10)
            async with await box.fork() as twin, await twin.fork() as third:
                assert ledger.live == 3
                for name, one in (("box", box), ("twin", twin), ("third", third)):
                    await one.exec(f"echo {name} > a; rm folder/new; echo {name} > folder/{name}", timeout_s=10)
                assert [(await one.exec("cat a folder/*", timeout_s=10)).text for one in (box, twin, third)] == [
                    "box\nbox\n",
                    "twin\ntwin\n",
                    "third\nthird\n",
                ]
                await box.close()
                assert (await twin.exec("cat a", timeout_s=10)).text == "twin\n"

        in_sandbox(work, repository)

    def test_a_snapshot_outlives_its_sandbox(self, in_sandbox: Any, repository: Any, ledger: Ledger) -> None:
        async def work(box: Any) -> None:
            await box.exec(CHANGES, timeout_s=10)
            async with await box.snapshot() as snapshot:
                await box.close()
                opening = [self.open(repository, ledger, snapshot) for _ in range(3)]
                for one in await asyncio.gather(*opening):
                    async with one:
                        assert await listed(one) == CHANGED

        in_sandbox(work, repository)

    def test_jobs_go_on_after_a_snapshot_and_end_at_a_restore(self, in_sandbox: Any) -> None:
        async def work(box: Any) -> None:
            shell = await box.shell()
            await shell.run(
                "A=1; (while :; do echo x >> log; sleep 0.01; done) & until [ -s log ]; do sleep 0.01; done",
                timeout_s=5,
            )
            async with await box.snapshot() as snapshot:
                before = len(await box.read("log"))
                await asyncio.sleep(0.3)
                assert len(await box.read("log")) > before
                await box.restore(snapshot)
                at_first = len(await box.read("log"))
                assert (await shell.run("echo $A; cd /tmp", timeout_s=5)).text == "\n"
                assert len(await box.read("log")) == at_first

        in_sandbox(work)

    def test_a_snapshot_of_something_else_is_refused(self, in_sandbox: Any, ledger: Ledger) -> None:
        async def work(box: Any) -> None:
            async with await box.snapshot() as snapshot:
                other = self.made_like(SandboxSpec(env={"A": "1"}))
                with pytest.raises(ConfigError, match="another specification"):
                    await self.open(other, ledger, snapshot)
            with pytest.raises(ConfigError, match="closed"):
                await self.open(box.spec, ledger, snapshot)
            assert (await box.exec("echo alive", timeout_s=5)).text == "alive\n"

        in_sandbox(work)

    def test_folders_and_files_go_up_and_down(self, in_sandbox: Any, tmp_path: Path) -> None:
        source = tmp_path / "source"
        (source / "folder").mkdir(parents=True)
        (source / "folder" / "script").write_text("#!/bin/sh\necho ran\n")
        (source / "folder" / "script").chmod(0o755)
        (source / "link").symlink_to("folder/script")
        (source / "-rf").write_bytes(bytes(range(256)))

        async def work(box: Any) -> None:
            await box.write("up/kept", b"1")
            await box.upload(source, "up")
            assert (await box.exec("up/link && cat up/kept", timeout_s=5)).text == "ran\n1"
            await box.upload(source / "-rf", "deep/er/-x")
            await box.download("up", tmp_path / "down")
            await box.download("deep/er/-x", tmp_path / "file")
            with pytest.raises(FileExistsError):
                await box.download("up", tmp_path / "down")
            with pytest.raises(FileNotFoundError):
                await box.download("none", tmp_path / "none")

        in_sandbox(work)
        assert sorted(os.listdir(tmp_path / "down")) == ["-rf", "folder", "kept", "link"]
        assert (tmp_path / "down" / "link").readlink() == Path("folder/script")
        assert (tmp_path / "down" / "folder" / "script").stat().st_mode & 0o777 == 0o755
        assert (tmp_path / "file").read_bytes() == bytes(range(256))

    @pytest.mark.parametrize(
        ("made", "said"),
        [
            ("ln -s /etc d/x", "may lead outside"),
            ("ln -s ../.. d/x", "may lead outside"),
            ("mkfifo d/x", "neither a file"),
            ("head -c 200000 /dev/zero > d/x", "larger than"),
            ("head -c 9000000 /dev/zero > d/x", "larger than"),
            ("truncate -s 900M d/x", "larger than"),
        ],
    )
    def test_what_is_not_safe_to_bring_down_is_refused(
        self, in_sandbox: Any, tmp_path: Path, made: str, said: str
    ) -> None:
        async def work(box: Any) -> None:
            await box.exec(f"mkdir d; {made}", timeout_s=10)
            with pytest.raises(SandboxError, match=said):
                await box.download("d", tmp_path / "down", max_bytes=100_000)

        in_sandbox(work)
        assert os.listdir(tmp_path) == []
