"""An index that has followed a repository through any changes answers as one that is made from what is there now."""

import asyncio
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skyrl_gym.sandbox import Mount, Sandbox, SandboxSpec, open_sandbox
from skyrl_gym.tools.code_search import CodeSearch, Parsers, Store

FOLDERS = (".", "a", "a/b", "c")
NAMES = ("one.py", "two.py", "six.js")
WORDS = ("red", "tan", "sky")  # of one length, so that an edit can leave a file's size as it was
FILES = {
    "a/one.py": "def red():\n    return sky()\n",
    "a/b/two.py": "from a.one import red\nclass Tan:\n    def sky(self):\n        red()\n",
    "c/six.js": "function tan() { red(); }\n",
}
PATHS = st.builds("{}/{}".format, st.sampled_from(FOLDERS), st.sampled_from(NAMES))
CHANGES = st.one_of(
    st.builds("mkdir -p $(dirname {0}) && echo 'def {1}(): {2}()' > {0}".format, PATHS, *2 * [st.sampled_from(WORDS)]),
    st.builds("sed -i s/{1}/{2}/ {0}".format, PATHS, *2 * [st.sampled_from(WORDS)]),
    # In the same file, and with the time that it had.
    st.builds(
        "cp -p {0} /tmp/old && sed s/{1}/{2}/ /tmp/old > {0} && touch -r /tmp/old {0}".format,
        PATHS,
        *2 * [st.sampled_from(WORDS)],
    ),
    st.builds("rm -f {}".format, PATHS),
    st.builds("mv {} {}".format, PATHS, PATHS),
    st.builds("ln -f {} {}".format, PATHS, PATHS),
    st.builds("rm -rf {0} && mkdir {0}".format, st.sampled_from(FOLDERS[1:])),
    st.builds("mv {} {}".format, st.sampled_from(FOLDERS[1:]), st.sampled_from(FOLDERS[1:])),
    st.builds("cp -r {} {}".format, st.sampled_from(FOLDERS[1:]), st.sampled_from(FOLDERS[1:])),
    st.builds("rm -rf {0} && mkdir -p {0}/b && echo 'class Red: pass' > {0}/b/one.py".format, st.just("a")),
    st.builds("rm -rf {0}; mkdir -p {0}/deep && echo 'def tan(): pass' > {0}/deep/two.py".format, PATHS),
    st.builds("chmod {1} {0}".format, st.sampled_from(FOLDERS[1:]), st.sampled_from(("000", "755"))),
    st.just("ln -sfn a/b link.py"),
    st.just("head -c 1500000 /dev/zero | tr '\\0' '\\n' >> a/one.py"),
    st.just("true"),
)
QUESTIONS: tuple[dict[str, Any], ...] = (
    *({"query": word} for word in (*WORDS, "Red")),
    *({"query": "red", "mode": mode} for mode in ("callers", "imports")),
    {"path": ".", "mode": "outline"},
    {"query": "def return class"},
)


class Coarse:
    """A place whose change times tell nothing, as if all happened in the present tick of the clock."""

    def __init__(self, box: Sandbox) -> None:
        self._box = box

    async def inspect(self, command: list[str], **settings: Any) -> Any:
        ran = await self._box.inspect(command, **settings)
        if not re.search("find|stat ", command[2]):
            return ran
        stamps = re.sub(rb"(?m)(^|\0)(\d+) \d+\.\d+ (\d+)", rb"\1\2 9999999999.5000000000 \3", ran.output)
        return replace(ran, output=stamps)

    def layer(self, target: str) -> str | None:
        return self._box.layer(target)


class Layerless(Coarse):
    """A place that keeps no layer of what is written."""

    async def inspect(self, command: list[str], **settings: Any) -> Any:
        return await self._box.inspect(command, **settings)

    def layer(self, target: str) -> str | None:
        return None


@pytest.fixture(scope="module")
def parsers() -> Iterator[Parsers]:
    made = Parsers(1)
    yield made
    made.close()


async def answers(search: CodeSearch) -> Mapping[str, str]:
    return {str(question): await search.search(**question) for question in QUESTIONS}


@pytest.mark.parametrize("seen", [lambda box: box, Coarse, Layerless])
@given(st.lists(st.lists(CHANGES, min_size=1, max_size=3), min_size=1, max_size=4))
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_index_that_followed_every_change_answers_as_a_new_one(
    seen: Any, parsers: Parsers, tmp_path_factory: pytest.TempPathFactory, rounds: list[list[str]]
) -> None:
    async def play(root: Path) -> None:
        async with await open_sandbox(SandboxSpec(mounts=(Mount(str(root), "/work", "private"),))) as box:
            following = CodeSearch(seen(box), "/work", Store(parsers))
            await following.search("red")
            for changes in rounds:
                await box.exec("; ".join(changes), timeout_s=60)
                assert await answers(following) == await answers(CodeSearch(box, "/work", Store(parsers)))

    root = tmp_path_factory.mktemp("tree", numbered=True)
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    root.chmod(0o755)
    asyncio.run(play(root))


@pytest.mark.parametrize("seen", [Coarse, Layerless])
def test_edits_in_one_tick_of_the_clock_are_seen(seen: Any, parsers: Parsers, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("def red(): pass\n")
    tmp_path.chmod(0o755)

    async def play() -> None:
        async with await open_sandbox(SandboxSpec(mounts=(Mount(str(tmp_path), "/work", "private"),))) as box:
            search = CodeSearch(seen(box), "/work", Store(parsers))
            for name in ("red", "tan", "sky", "red"):
                await box.write("one.py", f"def {name}(): pass\n".encode())
                assert "1 definition" in await search.search(name)

    asyncio.run(play())


def test_files_that_a_snapshot_brings_back_are_seen(parsers: Parsers, tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    tmp_path.chmod(0o755)

    async def play() -> None:
        async with await open_sandbox(SandboxSpec(mounts=(Mount(str(tmp_path), "/work", "private"),))) as box:
            search = CodeSearch(box, "/work", Store(parsers))
            await box.exec("sed -i s/red/tan/ a/one.py; rm c/six.js", timeout_s=60)
            before = await answers(search)
            async with await box.snapshot() as snapshot:
                await box.exec("rm -rf a; mkdir c/a; mv c b; echo 'def sky(): pass' > b/a/two.py", timeout_s=60)
                assert await answers(search) != before
                await box.restore(snapshot)
            assert await answers(search) == before

    asyncio.run(play())
