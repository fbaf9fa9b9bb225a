"""Tasks made of a repository: bugs put in, repairs mined, all of them tried before they are kept."""

import asyncio
import json
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from skyrl_gym import Task, ToolCall
from skyrl_gym.cli.app import app
from skyrl_gym.envs.swe import factory
from skyrl_gym.envs.swe.factory import candidates, inject_bugs, mine_repairs
from skyrl_gym.envs.swe.history import export, repairs, split_diff
from skyrl_gym.envs.swe.instance import Commit
from skyrl_gym.envs.swe.origins import Testing, git_origin
from skyrl_gym.envs.swe.report import TestReport
from skyrl_gym.envs.swe.solve import gold_actions
from skyrl_gym.envs.swe.statements import source_of, statement
from skyrl_gym.envs.swe.vetting import Vetted
from skyrl_gym.errors import ConfigError, SetupError, TaskError

CODE = (
    "def clamp(x, low, high):\n    if x < low:\n        return low\n    if x > high:\n        return high\n"
    "    return x\n\n\ndef half(x):\n    return x // {}\n"
)
TEST_CLAMP = (
    "from moon import clamp\n\n\ndef test_low():\n    assert clamp(-1, 0, 9) == 0\n\n\n"
    "def test_high():\n    assert clamp(99, 0, 9) == 9\n\n\ndef test_between():\n    assert clamp(5, 0, 9) == 5\n"
)
TEST_HALF = "from moon import half\n\n\ndef test_zero():\n    assert half(0) == 0\n"
NEW = "\n\ndef test_half():\n    assert half(6) == 3\n"


class Repository:
    """A git repository, written commit by commit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        command = ["git", *who, *arguments]
        return subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True, timeout=30).stdout

    def commit(self, message: str, **files: str) -> str:
        for name, text in files.items():
            path = self.folder / name.replace("__", "/").replace("_py", ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "HEAD").strip()


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """A package with a bug and its repair in the history, and a cache of its own."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("SKYRL_CACHE", f"{folder}/cache")
        (Path(folder) / "moon").mkdir()
        made = Repository(Path(folder) / "moon")
        made.commit("First", moon_py=CODE.format(3), tests__test_clamp_py=TEST_CLAMP, tests__test_half_py=TEST_HALF)
        made.commit("Words alone", README="A moon.\n")
        made.commit("Halve by two", moon_py=CODE.format(2), tests__test_half_py=TEST_HALF + NEW)
        yield made


def collect(made: AsyncIterator[Vetted]) -> list[Vetted]:
    async def gather() -> list[Vetted]:
        return [vetted async for vetted in made]

    return asyncio.run(gather())


def test_bugs_are_put_into_the_commit_that_is_checked_out(repository: Repository, play: Any) -> None:
    found = collect(inject_bugs(git_origin(str(repository.folder), Testing()), 2, seed=0, repeats=1))
    rows = [vetted.row for vetted in found if vetted.sound]
    assert len(rows) == 2
    for row in rows:
        assert row["base_commit"] == repository.git("rev-parse", "HEAD").strip()
        assert row["FAIL_TO_PASS"] and row["PASS_TO_PASS"]
        assert f"`{row['FAIL_TO_PASS'][0]}` fails:" in row["problem_statement"]
    assert play(Task.from_row(rows[0]))[0] == 0.0
    assert play(Task.from_row(rows[0]), *gold_actions(Task.from_row(rows[0]))[:-1])[0] == 1.0


def test_a_seed_gives_the_same_rows_byte_for_byte_and_another_seed_others(repository: Repository) -> None:
    origin = git_origin(str(repository.folder), Testing())

    def rows(seed: int) -> list[str]:
        return [json.dumps(vetted.row) for vetted in collect(inject_bugs(origin, 2, seed, repeats=1))]

    assert rows(1) == rows(1) != rows(2)


def test_a_repair_is_mined_with_its_tests_kept_from_the_agent(repository: Repository, env: Any, play: Any) -> None:
    (found,) = collect(mine_repairs(git_origin(str(repository.folder), Testing()), 9))
    row = found.row
    assert found.sound, found.reason
    assert (row["FAIL_TO_PASS"], row["PASS_TO_PASS"]) == (
        ["tests/test_half.py::test_half"],
        ["tests/test_half.py::test_zero"],
    )
    assert "tests that are not in the repository yet" in row["problem_statement"]
    assert "assert 2 == 3" in row["problem_statement"] and "x // 2" not in row["problem_statement"]
    assert "It is:\n\n    def test_half():\n        assert half(6) == 3" in row["problem_statement"]
    task = Task.from_row(row)
    env.reset(options={"task": task})
    places = "/work /opt /tmp /var /home /root /etc /srv"
    command = f"git log --format=%s; cat moon.py; grep -rlF -e 'half(6)' -e 'return x // 2' {places} 2>/dev/null"
    seen = str(env.step(ToolCall("bash", {"command": command}))[0][-1].content)
    assert seen.startswith("Initial commit\n") and seen.rstrip().endswith("return x // 3\n[exit status 2]")
    assert play(task)[0] == 0.0
    assert play(task, *gold_actions(task)[:-1])[0] == 1.0


def test_a_repair_whose_tests_are_flaky_or_tell_nothing_is_kept_apart_with_the_reason(repository: Repository) -> None:
    flaky = "\n\ndef test_time():\n    import os\n    assert os.urandom(1)[0] % 2\n"
    many = "".join(flaky.replace("test_time", f"test_time{n}") for n in range(8))
    repository.commit("Flaky", moon_py=CODE.format("2  # half"), tests__test_half_py=TEST_HALF + NEW + many)
    repository.commit("Nothing", moon_py=CODE.format("2"), tests__test_half_py=f"{TEST_HALF}{NEW}\n# seen\n")
    found = collect(mine_repairs(git_origin(str(repository.folder), Testing()), 1))
    assert [vetted.sound for vetted in found] == [False, False, True]
    assert found[0].reason == "no test fails without the repair and passes with it"
    assert found[1].reason.startswith("flaky with")
    assert "tests/test_half.py::test_time" in found[1].reason


def test_a_repair_that_ends_the_tests_is_kept_apart(repository: Repository) -> None:
    repository.commit("Ends", moon_py="import os\nos._exit(0)\n", tests__test_half_py=TEST_HALF)
    (found, *_) = collect(mine_repairs(git_origin(str(repository.folder), Testing()), 1))
    assert found.reason.startswith("the tests did not run to their end with the repair")


def test_a_repair_whose_tests_use_up_the_memory_is_kept_apart(repository: Repository) -> None:
    greedy = "\n\ndef test_much():\n    if half(6) == 3:\n        raise MemoryError\n"
    repository.commit("Much", moon_py=CODE.format("2  # half"), tests__test_half_py=TEST_HALF + NEW + greedy)
    (found, *_) = collect(mine_repairs(git_origin(str(repository.folder), Testing()), 1, repeats=1))
    assert found.reason == "tests use up the memory with the repair"


def test_only_commits_of_one_parent_with_code_and_tests_are_looked_at(repository: Repository) -> None:
    repository.git("checkout", "-q", "-b", "side", "HEAD~1")
    repository.commit("Tests alone", tests__test_other_py="def test_a(): pass\n")
    repository.git("checkout", "-q", "main")
    repository.git("merge", "-q", "-m", "Merge", "side")
    many = {f"m{n}_py": "x = 1\n" for n in range(9)}
    repository.commit("Many files", tests__test_many_py="def test_a(): pass\n", **many)
    (found,) = repairs(str(repository.folder))
    assert repository.git("log", "-1", "--format=%s", found.commit) == "Halve by two\n"
    assert "moon.py" in found.patch and "tests/" not in found.patch
    assert "tests/test_half.py" in found.test_patch and "a/moon.py" not in found.test_patch


def test_a_commit_is_exported_whole_and_the_repository_left_alone(repository: Repository, tmp_path: Path) -> None:
    commit = repository.commit("Left out of archives", **{".gitattributes": "tests export-ignore\n"})
    (repository.folder / "moon.py").write_text("changed")
    before = {path: path.stat().st_mtime_ns for path in repository.folder.rglob("*")}
    for url in (str(repository.folder), f"file://{repository.folder}"):
        target = tmp_path / str(len(url))
        target.mkdir()
        export(Commit(url, commit), target)
        assert (target / "moon.py").read_text() == CODE.format(2)
        assert (target / "tests" / "test_half.py").is_file()
    assert {path: path.stat().st_mtime_ns for path in repository.folder.rglob("*")} == before
    with pytest.raises(SetupError, match=r"git read-tree failed in .*moon"):
        export(Commit(str(repository.folder), "0" * 40), tmp_path)
    with pytest.raises(SetupError, match="git clone failed"):
        export(Commit("file:///nowhere", commit), tmp_path)


def test_the_diff_of_two_trees_is_parted_into_code_and_tests(tmp_path: Path) -> None:
    for side, value in (("a", "1"), ("b", "2")):
        (tmp_path / side / "tests").mkdir(parents=True)
        (tmp_path / side / "moon.py").write_text(f"x = {value}\n")
        (tmp_path / side / "tests" / "test_x.py").write_text(f"y = {value}\n")
    code, tests = split_diff(tmp_path / "a", tmp_path / "b")
    assert "-x = 1\n+x = 2\n" in code and "test_x" not in code
    assert "-y = 1\n+y = 2\n" in tests and "moon.py" not in tests
    assert split_diff(tmp_path / "a", tmp_path / "a") == ("", "")


def test_a_statement_leaves_out_lines_of_the_repair_and_names_missing_tests_by_their_file() -> None:
    messages = {"t.py": "ImportError: no half\n    return x // 2 + offset(0x7f00aabbccdd)\nat 0x7f00aabbccdd"}
    text = statement("moon", ["t.py::a", "t.py::b"], TestReport(True, {}, messages), "+    return x // 2 + offset\n")
    assert "ImportError: no half" in text and "x // 2" not in text and "at 0x..." in text
    many = statement("moon", [f"t.py::{n}" for n in range(9)], TestReport(True), hidden=True)
    assert many.endswith("5 more tests fail.\n") and "no message" in many


def test_a_statement_shows_the_code_of_one_test_that_the_agent_does_not_have() -> None:
    code = "def test_a():\n    y = 1\n    z = half(offset) + 1 // 2\n    assert y == z\n"
    patch = "+    z = half(offset) + 1 // 2\n"
    text = statement("moon", ["t.py::test_a", "t.py::b"], TestReport(True), patch, code, hidden=True)
    assert "It is:\n\n    def test_a():\n        y = 1\n        assert y == z\n\n`t.py::b` fails:" in text
    assert "It is" not in statement("moon", ["t.py::test_a"], TestReport(True), patch)


def test_a_tests_code_is_found_by_its_name_with_its_decorators_unless_it_is_long(repository: Repository) -> None:
    method = (
        "import pytest\n\nclass TestHalf:\n    @pytest.mark.parametrize('x', [6, 8])\n"
        "    def test_it(self, x):\n        assert half(x)\n"
    )
    long = "def test_long():\n" + "    assert half(6)\n" * 60
    commit = repository.commit("More", tests__test_more_py=f"# d\xe9j\xe0\r\n{method}\n{long}")
    origin = git_origin(str(repository.folder), Testing())
    assert origin.fields["base_commit"] == commit
    expected = "@pytest.mark.parametrize('x', [6, 8])\ndef test_it(self, x):\n    assert half(x)"
    assert source_of(origin.right(), "tests/test_more.py::TestHalf::test_it[6]") == expected
    for name in (
        "test_more.py::test_long",
        "test_more.py::test_no",
        "no.py::test_a",
        "test_more.py",
        "test_more.py::T::a",
    ):
        assert source_of(origin.right(), f"tests/{name}") == ""


def test_bugs_that_make_tests_hang_do_not_hold_up_the_others(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = "def count(n):\n    x = 0\n    while x < n:\n        x += 1\n    return x\n"
    test = "from moon import count\n\n\ndef test_count():\n    assert count(3) == 3\n\n\ndef test_none():\n    pass\n"
    repository.git("rm", "-q", "-r", "tests")
    repository.commit("Count", moon_py=count, tests__test_count_py=test)
    monkeypatch.setattr(factory, "SLOWER", 3.0)
    monkeypatch.setattr(factory, "LEAST_S", 3.0)
    origin = git_origin(str(repository.folder), Testing())

    async def rows() -> list[Vetted]:
        return [found async for found in inject_bugs(origin, 99, seed=0, repeats=1)]

    hanging = next(mutation for file, _, mutation in candidates(origin, 0) if mutation.replacement == "0")
    assert "x += 0" in hanging.apply(count)
    found = asyncio.run(asyncio.wait_for(rows(), 250))  # one that hangs has 300 s else
    assert found and all(vetted.sound and "-        x += 0\n" not in vetted.row["patch"] for vetted in found)


def test_a_repository_whose_tests_do_not_run_or_see_nothing_says_so(repository: Repository) -> None:
    folder = str(repository.folder)
    nothing = "def test_nothing():\n    pass\n"
    repository.git("rm", "-q", "-r", "tests")
    repository.commit("Blind", tests__test_nothing_py=nothing)
    with pytest.raises(TaskError, match="the tests of moon notice none of the bugs"):
        collect(inject_bugs(git_origin(folder, Testing()), 1, seed=0, repeats=1))
    repository.commit("Wanting", tests__test_nothing_py=f"import nowhere\n\n\n{nothing}")
    with pytest.raises(TaskError, match=r"no test of moon passes as it is; .*No module named 'nowhere'"):
        collect(inject_bugs(git_origin(folder, Testing()), 1, seed=0, repeats=1))
    repository.git("checkout", "-q", "--orphan", "young")
    repository.commit("First again")
    with pytest.raises(TaskError, match=r"no commit of moon changes code of Python and tests of it, 5 files at most"):
        collect(mine_repairs(git_origin(folder, Testing()), 1))


def test_where_tests_are_is_guessed_or_named(repository: Repository) -> None:
    folder = str(repository.folder)
    assert git_origin(folder, Testing()).fields["test_files"] == ["tests"]
    named = git_origin(folder, Testing(["tests/test_half.py"], ".", ["attrs==25.3.0"])).fields
    assert named["test_files"] == ["tests/test_half.py"]
    with pytest.raises(ConfigError, match=r"has no 'spec'; it has README, moon.py, tests"):
        git_origin(folder, Testing(["spec"]))


def test_the_command_writes_tasks_and_what_can_not_be_used_beside_them(repository: Repository, tmp_path: Path) -> None:
    repository.commit("Nothing", moon_py=CODE.format("2  # two"), tests__test_half_py=f"{TEST_HALF}{NEW}\n# seen\n")
    out = tmp_path / "new" / "tasks.jsonl"
    words = ["tasks", "make-swe", str(repository.folder), "--by", "mine", "--out", str(out)]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 0, ran.output
    kept = f"1 task in {out}, 1 in {out.with_suffix('.quarantine.jsonl')}; 20 wanted, and no more to be had\n"
    assert ran.stdout == kept
    (row,) = map(json.loads, out.read_text().splitlines())
    (bad,) = map(json.loads, out.with_suffix(".quarantine.jsonl").read_text().splitlines())
    assert row["instance_id"].startswith("moon__") and row["patch"] and row["test_patch"]
    assert bad["reason"] == "no test fails without the repair and passes with it"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_the_command_made_of_bugs_is_the_same_each_time_and_no_cheat_passes_it(
    repository: Repository, tmp_path: Path
) -> None:
    made = []
    for name in ("a.jsonl", "b.jsonl"):
        words = ["tasks", "make-swe", str(repository.folder), "--count", "2", "--seed", "5", "--out"]
        ran = CliRunner().invoke(app, [*words, str(tmp_path / name)])
        assert ran.exit_code == 0, ran.output
        made.append((tmp_path / name).read_bytes())
    assert made[0] == made[1]
    published = {"instance_id", "repo", "base_commit", "patch", "test_patch", "problem_statement"}
    for row in map(json.loads, made[0].splitlines()):
        assert published | {"FAIL_TO_PASS", "PASS_TO_PASS"} <= row.keys()
    ran = CliRunner().invoke(app, ["validate", "skyrl/swe-v0", "--set", f"tasks={tmp_path / 'a.jsonl'}"])
    assert ran.exit_code == 0, ran.output


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["half-moon==1.0", "--by", "mine"], "no history to mine; name two versions, like half-moon==A..B"),
        (["/nowhere"], "git clone failed"),
    ],
)
def test_a_source_that_gives_nothing_is_one_line(words: list[str], says: str, tmp_path: Path) -> None:
    ran = CliRunner().invoke(app, ["tasks", "make-swe", *words, "--out", str(tmp_path / "a.jsonl")])
    assert ran.exit_code in (1, 2)
    assert says in ran.stderr and ran.stderr.count("\n") == 1
    ran = CliRunner().invoke(app, ["tasks", "make-swe", *words, "--out", str(tmp_path / "a.txt")])
    assert "--out names a .jsonl file" in ran.stderr
    assert not os.listdir(tmp_path)
