"""The search tool on a repository in a real sandbox; the seven faults of the paper's own script are tests by name."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias, get_args

import pytest

from skyrl_gym import ToolCall
from skyrl_gym.envs.swe.env import SweEnv
from skyrl_gym.errors import ToolError
from skyrl_gym.sandbox import Mount, Sandbox, SandboxSpec, open_sandbox
from skyrl_gym.tools.code_search import CodeSearch, Mode, Parsers, Store

Ask: TypeAlias = Callable[..., Awaitable[str]]

FILES = {
    "pkg/__init__.py": "from pkg.shapes import Square\n",
    "pkg/shapes.py": (
        "import math\n\nclass Shape:\n    def area(self):\n        return self.measure()\n\n    def measure(self):\n"
        "        raise NotImplementedError\n\nclass ClassFoo(Shape):\n    side = 1\n\n    def measure(self):\n"
        "        return helper(self.side)\n\nclass Square(ClassFoo):\n    pass\n\n"
        "def helper(x):\n    return math.sqrt(x)\n"
    ),
    "latest/mod.py": "def newest_value():\n    return 1\n",
    "tests/test_shapes.py": "from pkg.shapes import helper\n\ndef test_helper():\n    assert helper(4) == 2\n",
    "web/app.ts": "export class Router {\n  handle(request: string): void { dispatch(request); }\n}\n",
    "go/server.go": "package server\n\nfunc (s *Server) Listen() error {\n\treturn open()\n}\n\ntype Server struct{}\n",
    "rs/lib.rs": "struct Pool;\nimpl Pool {\n    fn acquire(&self) -> u8 { grow() }\n}\n",
    "java/Main.java": "class Main extends Base {\n  int total() { return sum(1); }\n}\n",
    "c/io.c": "static int *read_block(int n) {\n  return grab(n);\n}\n",
    "cpp/io.cpp": "namespace io {\nclass File { void close(); };\nvoid File::close() { flush(); }\n}\n",
    "web/view.jsx": "export const Page = () => <Frame title={label()} />;\n",
    "README.md": "A phrase that is nowhere in code.\n",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    tmp_path.chmod(0o755)
    return tmp_path


def run(repository: Path, work: Callable[[Ask, Sandbox], Awaitable[None]]) -> None:
    async def play() -> None:
        parsers = Parsers()
        try:
            async with await open_sandbox(SandboxSpec(mounts=(Mount(str(repository), "/work", "private"),))) as box:
                await work(CodeSearch(box, "/work", Store(parsers)).search, box)
        finally:
            parsers.close()

    asyncio.run(play())


def ask_all(repository: Path, *questions: tuple[dict[str, Any], str]) -> None:
    async def work(ask: Ask, _: Sandbox) -> None:
        for question, expected in questions:
            assert expected in await ask(**question), question

    run(repository, work)


def test_names_are_found_exact_qualified_inherited_in_part_and_mistyped(repository: Path) -> None:
    ask_all(
        repository,
        ({"query": "helper"}, "pkg/shapes.py:helper (function, lines 19-20)"),
        ({"query": "Shape.area"}, "     4\t    def area(self):"),
        ({"query": "pkg.shapes.Square"}, "pkg/shapes.py:Square"),
        ({"query": "pkg.Square"}, "pkg/shapes.py:Square"),
        ({"query": "pkg/shapes.py:Shape.measure"}, "raise NotImplementedError"),
        ({"query": "Square.area"}, "Square.area is inherited"),
        ({"query": "newestValue"}, "newestValue is spelled otherwise"),
        ({"query": "newest"}, "latest/mod.py:newest_value"),
        ({"query": "hepler"}, "Nothing is named hepler. The most similar names:"),
        ({"query": "def helper(x):"}, "pkg/shapes.py:helper"),
    )


def test_relations_outlines_and_lines(repository: Path) -> None:
    ask_all(
        repository,
        ({"query": "helper", "mode": "callers"}, "return helper(self.side)   [in ClassFoo.measure]"),
        ({"query": "ClassFoo.measure", "mode": "callees"}, "helper: pkg/shapes.py:helper"),
        ({"query": "pkg/shapes.py", "mode": "imports"}, "from pkg.shapes import Square"),
        ({"query": "Square", "mode": "imports"}, "pkg/__init__.py"),
        ({"query": "pkg/shapes.py", "mode": "outline"}, "    class ClassFoo".strip()),
        ({"query": "ClassFoo", "mode": "outline"}, "def measure(self):"),
        ({"path": "pkg", "mode": "outline"}, "2 source files in pkg"),
        ({"query": "/work/pkg/shapes.py:helper"}, "1 definition"),
        ({"query": "./pkg/shapes.py", "mode": "outline"}, "pkg/shapes.py: 20 lines"),
        ({"query": "shapes.py:helper"}, "1 definition"),
        ({"query": "phrase that is nowhere", "mode": "text"}, "README.md"),
        ({"query": "Phrase That", "mode": "text"}, "in other case"),
        ({"query": "phrase that is nowhere in code"}, "README.md"),
    )


def test_callers_of_a_function_of_a_file_are_not_those_of_its_namesake(repository: Path) -> None:
    (repository / "pkg/own.py").write_text("def helper(x):\n    return x\n\ndef own_use():\n    return helper(1)\n")
    (repository / "pkg/of_own.py").write_text("from .own import helper\n\nof_own_use = helper(1)\n")
    (repository / "pkg/of_shapes.py").write_text("from .shapes import helper\n\nof_shapes_use = helper(1)\n")
    (repository / "pkg/unclear.py").write_text(
        "from pkg import *\n\nunclear_use = helper(1)\nmethod_use = x.helper(1)\n"
    )

    async def work(ask: Ask, _: Sandbox) -> None:
        every = await ask("helper", "callers")
        of_shapes = await ask("pkg/shapes.py:helper", "callers")
        of_own = await ask("pkg.own.helper", "callers")
        uses = {"own_use": of_own, "of_own_use": of_own, "of_shapes_use": of_shapes, "self.side": of_shapes}
        for use, mine in uses.items():
            assert use in every
            assert [text for text in (of_own, of_shapes) if f" {use}" in text or f"({use}" in text] == [mine]
        for text in (of_own, of_shapes):  # what can't be told is not left out
            assert "unclear_use" in text
            assert "method_use" in text

    run(repository, work)


def test_imports_of_a_file_are_told_from_those_of_its_namesakes(repository: Path) -> None:
    (repository / "other").mkdir()
    (repository / "other/shapes.py").write_text("sides = 1\n")
    (repository / "other/near.py").write_text("from . import shapes\n")
    (repository / "pkg/near.py").write_text("from . import shapes\nfrom .shapes import Square\n")
    ask_all(
        repository,
        (
            {"query": "pkg/shapes.py", "mode": "imports"},
            "pkg/near.py\n     1\tfrom . import shapes\n     2\tfrom .shapes",
        ),
        (
            {"query": "other/shapes.py", "mode": "imports"},
            "imported by:\nother/near.py\n     1\tfrom . import shapes\nNext",
        ),
        (
            {"query": "newest_value", "mode": "imports"},
            "newest_value is defined in latest/mod.py, but no import names it.",
        ),
    )


def test_a_file_name_that_several_files_have_stands_for_all_of_them(repository: Path) -> None:
    (repository / "other").mkdir()
    (repository / "other/shapes.py").write_text("def other_one():\n    pass\n")
    ask_all(
        repository,
        ({"query": "shapes.py"}, "2 source files in **/shapes.py:\nother/shapes.py"),
        ({"query": "shapes.py", "mode": "imports"}, "2 source files in **/shapes.py:\nother/shapes.py"),
        ({"query": "shapes.py:helper"}, "1 definition:\npkg/shapes.py:helper"),
    )


def test_words_that_are_in_no_name_find_the_files_that_hold_them(repository: Path) -> None:
    async def work(ask: Ask, box: Sandbox) -> None:
        await box.write("pkg/notes.py", b"# the walrus sleeps under gentle snow\n")
        await box.write("pkg/more.py", b"# a walrus\n")
        found = await ask("snow under walrus")
        assert found.index("pkg/notes.py") < found.index("pkg/more.py")
        await box.write("pkg/notes.py", b"")
        assert "pkg/notes.py" not in await ask("snow under walrus")

    run(repository, work)


@pytest.mark.parametrize(
    ("name", "address", "called"),
    [
        ("Router.handle", "web/app.ts:Router.handle (method, line 2)", "dispatch"),
        ("Server.Listen", "go/server.go:Server.Listen (method, lines 3-5)", "open"),
        ("Pool.acquire", "rs/lib.rs:Pool.acquire (method, line 3)", "grow"),
        ("Main.total", "java/Main.java:Main.total (method, line 2)", "sum"),
        ("read_block", "c/io.c:read_block (function, lines 1-3)", "grab"),
        ("io::File::close", "cpp/io.cpp:io.File.close (method, line 3)", "flush"),
        ("Page", "web/view.jsx:Page (function, line 1)", "Frame"),
    ],
)
def test_every_language_has_definitions_and_callers(repository: Path, name: str, address: str, called: str) -> None:
    """The published search script, fault 7: it reads Python only."""
    ask_all(repository, ({"query": name}, address), ({"query": called, "mode": "callers"}, address.split(":")[0]))


# ---- none of the faults of the paper's script


def test_lines_can_be_asked_for(repository: Path) -> None:
    """The published search script, fault 1: lines asked for by number are never shown."""

    async def work(ask: Ask, _: Sandbox) -> None:
        shown = await ask("", "code", "pkg/shapes.py", [4, 5])
        assert "     4\t    def area(self):\n     5\t        return self.measure()" in shown
        assert "Shape.area" in await ask("pkg/shapes.py:5")
        with pytest.raises(ToolError, match=r"lines=\[first, last\]"):
            await ask("", "code", "pkg/shapes.py")

    run(repository, work)


def test_a_name_that_begins_with_a_keyword_is_whole(repository: Path) -> None:
    """The published search script, fault 2: ClassFoo loses its prefix."""
    ask_all(repository, ({"query": "ClassFoo"}, "1 definition"), ({"query": "class ClassFoo"}, "1 definition"))


def test_a_miss_says_so_and_what_to_do(repository: Path) -> None:
    """The published search script, fault 3: a miss prints an empty line."""

    async def work(ask: Ask, _: Sandbox) -> None:
        says = "No definition|No line|There is no|not in|is not defined"
        for query in ("qqqqzzzz", "qqqqzzzz wwwww", "Qqqq.zzzz", "pkg/qqqq.py", "pkg/shapes.py:qqqq"):
            for mode in get_args(Mode):
                try:
                    answer = await ask(query, mode)
                except ToolError as error:
                    answer = f"{error}\nNext: as it says"
                assert re.match(says, answer), (query, mode, answer)
                assert "\nNext: " in answer, (query, mode, answer)

    run(repository, work)


def test_a_name_that_is_elsewhere_is_named_there(repository: Path) -> None:
    ask_all(
        repository,
        ({"query": "helper", "path": "latest"}, "is not defined in latest, but here:\npkg/shapes.py:helper"),
    )


def test_only_whole_names_make_a_test_and_tests_are_found_too(repository: Path) -> None:
    """The published search script, fault 4: latest/ is taken for tests, and tests are not found."""
    ask_all(
        repository,
        ({"query": "latest/mod.py"}, "newest_value"),
        ({"query": "newest_value"}, "1 definition"),
        ({"query": "tests/test_shapes.py"}, "test_helper"),
        ({"query": "test_shapes.py"}, "tests/test_shapes.py: 4 lines"),
        ({"query": "test_helper"}, "tests/test_shapes.py:test_helper"),
    )


def test_what_was_just_written_is_found_and_what_was_removed_is_not(repository: Path) -> None:
    """The published search script, fault 5: it is stale after edits."""

    async def work(ask: Ask, box: Sandbox) -> None:
        assert (await ask("helper")).startswith("1 definition")  # and no word of how the index was made
        await box.write("pkg/more.py", b"def brand_new():\n    return helper(2)\n")
        assert "pkg/more.py:brand_new (function" in await ask("brand_new")
        assert "pkg/more.py" in await ask("helper", "callers")
        # As large as before, and with the old modification time.
        change = "cp -p latest/mod.py /tmp/m && sed -i s/newest/oldest/ latest/mod.py && touch -r /tmp/m latest/mod.py"
        await box.exec(change, timeout_s=10)
        assert "1 definition" in await ask("oldest_value")
        # Larger than what is parsed, and then not any more; in a folder that is new.
        await box.exec("mkdir -p new/deep && head -c 2000000 /dev/zero > new/deep/large.py", timeout_s=10)
        assert "No definition" in await ask("late_value")
        await box.write("new/deep/large.py", b"def late_value():\n    return 1\n")
        assert "1 definition" in await ask("late_value")
        await box.exec("mv pkg/more.py pkg/other.py && rm pkg/shapes.py", timeout_s=10)
        assert "pkg/other.py:brand_new" in await ask("brand_new")
        assert "pkg/shapes.py:helper (" not in await ask("helper")

    run(repository, work)


def test_nothing_is_written_into_the_repository(repository: Path) -> None:
    """The published search script, fault 6: its index lies in the repository and shows in `git status`."""

    async def work(ask: Ask, box: Sandbox) -> None:
        made = "git init -q . && git add . && git -c user.name=a -c user.email=a@b commit -qm all"
        assert (await box.exec(made, timeout_s=20)).code == 0
        listed = "git status --porcelain --ignored; find . -path ./.git -prune -o -print | sort | sha256sum"
        before = (await box.exec(listed, timeout_s=10)).output
        await ask("helper")
        await ask("nothing of that name")
        assert (await box.exec(listed, timeout_s=10)).output == before

    run(repository, work)


def test_files_are_parsed_once_for_all_episodes_on_a_repository(repository: Path) -> None:
    """The published search script, fault 7: each container parses the repository anew."""

    async def play() -> None:
        parsers = Parsers()
        store = Store(parsers)
        spec = SandboxSpec(mounts=(Mount(str(repository), "/work", "private"),))
        try:
            async with await open_sandbox(spec) as one, await open_sandbox(spec) as two:
                searches = [CodeSearch(box, "/work", store) for box in (one, two)]
                await asyncio.gather(*(search.search("helper") for search in searches))
                first, second = [await search.tracker.index() for search in searches]
                assert first.base is second.base
                await one.write("latest/mod.py", b"def zzfresh():\n    pass\n")
                assert "1 definition" in await searches[0].search("zzfresh")
                assert "No definition" in await searches[1].search("zzfresh")
        finally:
            parsers.close()

    asyncio.run(play())


# ---- what an agent could leave in the way


class Liar:
    """A place that gives another's digests for its own."""

    def __init__(self, box: Sandbox, other: Sandbox) -> None:
        self._box, self._other = box, other

    async def inspect(self, command: Any, **settings: Any) -> Any:
        box = self._other if any("sha256sum" in word for word in command) else self._box
        return await box.inspect(command, **settings)

    def layer(self, target: str) -> str | None:
        return self._box.layer(target)


def test_an_episode_that_lies_about_its_files_misleads_no_other(repository: Path) -> None:
    async def play() -> None:
        parsers = Parsers()
        store = Store(parsers)
        spec = SandboxSpec(mounts=(Mount(str(repository), "/work", "private"),))
        try:
            async with await open_sandbox(spec) as mine, await open_sandbox(spec) as other:
                await mine.write("latest/mod.py", b"def zzplanted():\n    pass\n")
                assert "1 definition" in await CodeSearch(Liar(mine, other), "/work", store).search("zzplanted")
                honest = CodeSearch(other, "/work", store)
                assert "No definition" in await honest.search("zzplanted")
                assert "1 definition" in await honest.search("newest_value")
        finally:
            parsers.close()

    asyncio.run(play())


def test_links_binaries_and_strange_files_are_no_obstacle(repository: Path) -> None:
    async def work(ask: Ask, box: Sandbox) -> None:
        made = (
            "ln -s /etc/passwd pkg/leak.py; ln -s /etc pkg/folder; ln -s . pkg/loop; mkfifo pkg/pipe.py; "
            "head -c 9999 /dev/zero > pkg/zero.py; head -c 3000000 /dev/zero > pkg/huge.py; "
            r"printf 'def caf\351(): pass\ndef latin(): pass\n' > pkg/latin.py; touch pkg/none.py; "
            "printf 'def hidden(): pass\\n' > pkg/shut.py; chmod 000 pkg/shut.py; "
            "printf 'def named(): pass\\n' > $'pkg/new\\nline.py'; "
            "printf 'def fine(:\\n  x = (\\ndef after(): pass\\n' > pkg/bad.py"
        )
        await box.exec(made, timeout_s=20)
        assert "pkg/latin.py:latin" in await ask("latin")
        assert "after" in await ask("after")
        assert "new\\nline" in await ask("named") or "new\nline" in await ask("named")
        assert "root:" not in await ask("pkg/leak.py:1")
        assert "No line holds" in await ask("root:x:0", "text")
        with pytest.raises(ToolError, match="path is in the repository"):
            await ask("root", path="../../etc")

    run(repository, work)


# ---- in the environment


def test_the_agent_searches_and_the_repository_stays_clean(env: Any) -> None:
    env.reset(options={"task": 0})
    opening = str(env.conversation[0].content)
    assert "Look around with search and bash" in opening
    observed = str(env.step(ToolCall("search", {"mode": "outline", "path": "."}))[0][-1].content)
    assert "source files" in observed
    status = env.step(ToolCall("bash", {"command": "git status --porcelain"}))[0][-1].content
    assert status == "bash gave no output."
    *_, info = env.step(ToolCall("submit"))
    assert info["metrics"]["files_changed"] == 0


def test_search_can_be_switched_off() -> None:
    env = SweEnv(code_search=False)
    assert "search" not in [spec.name for spec in env.tool_specs]
    env.reset(options={"task": 0})
    assert "Look around with bash," in str(env.conversation[0].content)
    env.close()
