"""After an edit the agent is told of the fault of syntax that it brought in, in every language, and of no other."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyrl_gym.envs.swe.files import SYNTAX_WARNING, FileEditor
from skyrl_gym.envs.swe.syntax import SyntaxCheck
from skyrl_gym.sandbox import FakeSandbox, Mount, SandboxSpec, open_sandbox
from skyrl_gym.tools.code_search import Parsers

GOOD = {
    "a.py": "def f(x):\n    return [x]\n",
    "a.js": "export function f(x) {\n  return [x];\n}\n",
    "a.jsx": "export const Page = () => <p>{[x]}</p>;\n",
    "a.ts": "export function f(x: number): number[] {\n  return [x];\n}\n",
    "a.tsx": "export const Page = (x: number) => <p>{[x]}</p>;\n",
    "a.go": "package a\n\nfunc f(x int) []int {\n\treturn []int{x}\n}\n",
    "a.rs": "fn f(x: u8) -> [u8; 1] {\n    [x]\n}\n",
    "A.java": "class A {\n  int[] f(int x) { return new int[] {x}; }\n}\n",
    "a.c": "int f(int *x) {\n  return x[0];\n}\n",
    "a.cpp": "namespace a {\nint f(int *x) { return x[0]; }\n}\n",
    "a.h": "class A { int f(int *x) { return x[0]; } };\n",
}


@pytest.fixture(scope="module")
def parsers() -> Iterator[Parsers]:
    made = Parsers(1)
    yield made
    made.close()


def said(parsers: Parsers, path: str, before: str | None, after: str, encoding: str = "utf-8") -> str:
    check = SyntaxCheck(FakeSandbox(), None, parsers)
    old = None if before is None else before.encode(encoding)
    return str(asyncio.run(check.new_fault(path, old, after.encode(encoding))))


@pytest.mark.parametrize("path", GOOD)
def test_every_language_is_checked(parsers: Parsers, path: str) -> None:
    good = GOOD[path]
    assert said(parsers, path, None, good) == "None"
    assert said(parsers, path, good, re.sub(r"\bx\b", "longer", good)) == "None"
    broken = good.replace("]", "", 1)
    assert said(parsers, path, good, broken).startswith("line")
    assert said(parsers, path, None, broken).startswith("line")
    assert said(parsers, path, broken, good) == "None"


def test_the_fault_is_named_with_its_line(parsers: Parsers) -> None:
    assert said(parsers, "a.c", None, "int f(void) {\n  return 1\n}\n") == "line 2: ';' is missing"
    assert said(parsers, "a.go", None, "package a\n\nfunc f() {\n\tx := := 1\n}\n").startswith("line 4: unexpected")


def test_faults_that_were_there_are_not_the_edits(parsers: Parsers) -> None:
    old = "int f(void) {\n  return 1\n}\n"
    assert said(parsers, "a.c", old, "// moved down\n" + old) == "None"
    both = old + "int g(void) {\n  return 2\n}\n"
    assert said(parsers, "a.c", old, both) == "line 5: ';' is missing"
    assert said(parsers, "a.c", both, old) == "None"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_line_ends_and_encodings_are_no_fault(parsers: Parsers, encoding: str, newline: str) -> None:
    for path in ("a.py", "a.ts", "a.c"):
        good = f"{GOOD[path]}{'#' if path == 'a.py' else '//'} é".replace("\n", newline)
        assert said(parsers, path, None, good, encoding) == "None"
        assert said(parsers, path, good, good.replace("]", "", 1), encoding) != "None"


def test_what_is_no_source_file_and_what_is_too_large_is_not_checked(parsers: Parsers) -> None:
    assert said(parsers, "Makefile", None, "all:\n((((") == "None"
    assert said(parsers, "a.js", None, "(" * 2_000_000) == "None"


def test_python_is_checked_by_the_interpreter_of_its_repository(tmp_path: Path, parsers: Parsers) -> None:
    tmp_path.chmod(0o755)

    async def play() -> None:
        spec = SandboxSpec(mounts=(Mount(str(tmp_path), "/work", "private"),))
        async with await open_sandbox(spec) as box:
            editor = FileEditor(box, SyntaxCheck(box, "/usr/bin/python3", parsers))
            made = await editor.create("a.py", "import os\nos.mkdir('ran')\ndef f():\n    return 1\n")
            assert made == "Created a.py."
            broken = await editor.replace("a.py", "    return 1", "return 1")
            assert f"{SYNTAX_WARNING} line 4: IndentationError: expected an indented block" in broken
            again = await editor.replace("a.py", "import os", "import os  # still broken below")
            assert SYNTAX_WARNING not in again
            nested = await editor.create("deep.py", "x = " + "(" * 5_000 + ")" * 5_000 + "\n")
            assert SYNTAX_WARNING in nested
            with pytest.raises(FileNotFoundError):  # nothing of it was run
                await box.read("ran/x")
            assert (await box.exec("ls", timeout_s=10)).text.split() == ["a.py", "deep.py"]

    asyncio.run(play())


def test_an_editor_says_it_and_leaves_the_edit_as_it_is(tmp_path: Path, parsers: Parsers) -> None:
    tmp_path.chmod(0o755)

    async def play() -> None:
        spec = SandboxSpec(mounts=(Mount(str(tmp_path), "/work", "private"),))
        async with await open_sandbox(spec) as box:
            editor = FileEditor(box, SyntaxCheck(box, None, parsers))
            assert await editor.create("a.ts", GOOD["a.ts"]) == "Created a.ts."
            assert SYNTAX_WARNING in await editor.replace("a.ts", "[x];", "[x;")
            assert await box.read("a.ts") == GOOD["a.ts"].replace("[x];", "[x;").encode()
            assert SYNTAX_WARNING not in await editor.undo("a.ts")
            assert SYNTAX_WARNING in await editor.insert("a.ts", 0, "export {")
            assert SYNTAX_WARNING in await editor.create("b.rs", "fn f( {}\n")

    asyncio.run(play())
