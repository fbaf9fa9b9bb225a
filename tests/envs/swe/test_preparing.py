"""Trees, packages and their cache; the package index is a folder here."""

import hashlib
import io
import os
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym import Task, ToolCall
from skyrl_gym.envs.swe.index import download
from skyrl_gym.envs.swe.instance import Sdist, read_instance
from skyrl_gym.envs.swe.packages import runtime
from skyrl_gym.envs.swe.patches import apply_patch, patched_files, run_git
from skyrl_gym.envs.swe.solve import gold_actions
from skyrl_gym.envs.swe.store import cached
from skyrl_gym.envs.swe.trees import base_tree
from skyrl_gym.errors import SetupError, TaskError

SOURCE = {
    "PKG-INFO": "Metadata-Version: 2.1\nName: half-moon\nVersion: 1.0\n",
    "pyproject.toml": (
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
        "[project]\nname = 'half-moon'\nversion = '1.0'\n"
    ),
    # A build backend of its own: what pip asks for is the metadata, and nothing is installed for that.
    "backend.py": (
        "import os\n\ndef prepare_metadata_for_build_wheel(folder, config=None):\n"
        "    name = 'half_moon-1.0.dist-info'\n    os.mkdir(os.path.join(folder, name))\n"
        "    with open(os.path.join(folder, name, 'METADATA'), 'w') as file:\n"
        "        file.write('Metadata-Version: 2.1\\nName: half-moon\\nVersion: 1.0\\n')\n    return name\n"
        "def build_wheel(*arguments): raise NotImplementedError\n"
        "def build_sdist(*arguments): raise NotImplementedError\n"
    ),
    "half_moon.py": "def half(x):\n    return x // 3\n",
    "tests/test_half.py": (
        "import importlib.metadata\nfrom half_moon import half\n\n"
        "def test_half():\n    assert half(6) == 3\n\n"
        "def test_version():\n    assert importlib.metadata.version('half-moon') == '1.0'\n"
    ),
}
GOLD = (
    "--- a/half_moon.py\n+++ b/half_moon.py\n@@ -1,2 +1,2 @@\n def half(x):\n-    return x // 3\n+    return x // 2\n"
)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that pip takes for the index, with one source distribution; and an empty cache."""
    folder = tmp_path / "index"
    folder.mkdir()
    with tarfile.open(folder / "half_moon-1.0.tar.gz", "w:gz") as archive:
        for name, text in SOURCE.items():
            entry = tarfile.TarInfo(f"half_moon-1.0/{name}")
            entry.size, entry.mode = len(text), 0o600
            archive.addfile(entry, io.BytesIO(text.encode()))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    # Not below pytest's own folders, which are closed to the user that a sandbox runs as.
    with tempfile.TemporaryDirectory() as cache:
        Path(cache).chmod(0o755)
        monkeypatch.setenv("SKYRL_CACHE", cache)
        yield folder


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def row(index: Path, **changes: Any) -> dict[str, Any]:
    return {
        "instance_id": "half__moon-1.1",
        "repo": "half/moon",
        "patch": GOLD,
        "problem_statement": "half(6) is 2.",
        "FAIL_TO_PASS": '["tests/test_half.py::test_half"]',
        "PASS_TO_PASS": ["tests/test_half.py::test_version"],
        "package": "half-moon",
        "base_version": "1.0",
        "sdist_base": {"filename": "half_moon-1.0.tar.gz", "sha256": sha256(index / "half_moon-1.0.tar.gz")},
        **changes,
    }


def test_a_source_distribution_becomes_a_task(index: Path, play: Any) -> None:
    task = Task.from_row(row(index))
    assert play(task)[0] == 0.0
    assert play(task, *gold_actions(task)[:-1])[0] == 1.0


def test_neither_the_repair_nor_hidden_tests_are_anywhere_in_the_agents_sandbox(index: Path, env: Any) -> None:
    hidden = "--- /dev/null\n+++ b/tests/test_more.py\n@@ -0,0 +1 @@\n+assert 'seen by nobody'\n"
    env.reset(options={"task": Task.from_row(row(index, test_patch=hidden))})
    search = (
        "grep -rlF -e 'seen by nobody' -e 'return x // 2' /work /opt /tmp /var /home /root /etc /srv /mnt 2>/dev/null"
    )
    assert str(env.step(ToolCall("bash", {"command": search}))[0][-1].content) == "[exit status 2]"
    known = "grep -rlF 'return x // 3' /work"  # the search does find what is there
    assert "half_moon.py" in str(env.step(ToolCall("bash", {"command": known}))[0][-1].content)
    later = "find / -xdev -newermt '2020-01-02' -type f -not -path '/usr/*' -not -path '/opt/packages/*' 2>/dev/null"
    found = str(env.step(ToolCall("bash", {"command": later}))[0][-1].content)
    assert not [name for name in found.splitlines() if name.startswith("/work/") and not name.startswith("/work/.git/")]


def test_nothing_that_an_agent_makes_stands_in_the_way_of_the_test_patch(index: Path, play: Any) -> None:
    patch = "--- /dev/null\n+++ b/data/numbers.txt\n@@ -0,0 +1 @@\n+6\n"
    task = Task.from_row(row(index, test_patch=patch))
    block = ToolCall("bash", {"command": "touch data"})
    assert play(task, *gold_actions(task)[:-1], block)[0] == 1.0


def test_a_tree_is_one_commit_that_anybody_can_read(index: Path) -> None:
    tree = base_tree(read_instance(Task.from_row(row(index))))
    log = run_git(["log", "--all", "--format=%an %ad", "--date=iso"], tree).stdout
    assert log == "skyrl 2020-01-01 00:00:00 +0000\n"
    assert run_git(["status", "--short"], tree).stdout == ""
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in tree.rglob("*"))
    assert (tree / "half_moon.py").stat().st_mtime == 1_577_836_800


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sha256": "0" * 64}, "DO NOT MATCH THE HASHES"),
        ({"version": "9.9"}, "No matching distribution found for half-moon==9.9"),
        ({"package": "no-such-package"}, "No matching distribution found for no-such-package"),
        ({"filename": "other.tar.gz"}, "half_moon-1.0.tar.gz.*not other.tar.gz"),
    ],
)
def test_what_the_index_does_not_give_is_one_line(index: Path, change: dict[str, str], says: str) -> None:
    given = {"package": "half-moon", "version": "1.0", "filename": "half_moon-1.0.tar.gz"}
    given["sha256"] = sha256(index / "half_moon-1.0.tar.gz")
    with pytest.raises(SetupError, match=says) as caught:
        download(Sdist(**{**given, **change}))
    assert "\n" not in str(caught.value)


def test_requirements_that_bring_the_package_itself_are_refused(index: Path) -> None:
    with pytest.raises(SetupError, match=r"pip install half-moon==1\.1 failed: ERROR: No matching"):
        runtime(read_instance(Task.from_row(row(index, pip_packages=["half-moon==1.1"]))))
    with pytest.raises(TaskError, match="pip_packages bring PyTest itself"):
        runtime(read_instance(Task.from_row(row(index, package="PyTest"))))


@pytest.mark.parametrize("repo", ["astropy/astropy", "skyrl/..", "skyrl/nowhere", "other/versions", "versions"])
def test_a_row_without_a_source_is_refused(index: Path, repo: str) -> None:
    with pytest.raises(TaskError, match=r"no source for '.*skyrl/versions.*sdist_base"):
        base_tree(read_instance(Task.from_row(row(index, repo=repo, sdist_base=None))))


def test_a_shipped_package_is_looked_up_by_its_content(index: Path) -> None:
    shipped = row(index, repo="skyrl/versions", sdist_base=None, patch="")
    plain = base_tree(read_instance(Task.from_row(shipped)))
    assert base_tree(read_instance(Task.from_row({**shipped, "instance_id": "b"}))) == plain
    with pytest.raises(TaskError, match="does not apply"):
        base_tree(read_instance(Task.from_row({**shipped, "patch": GOLD})))


def test_whoever_asks_first_makes_it_and_the_others_wait(index: Path) -> None:
    made: list[Path] = []

    def make(target: Path) -> None:
        made.append(target)
        (target / "first").write_text("")
        released.wait(5)
        (target / "last").write_text("")

    released = threading.Event()
    seen: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda: seen.append(sorted(p.name for p in cached("kind", "key", make).iterdir())))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    released.set()
    for thread in threads:
        thread.join(10)
    assert seen == [["first", "last"]] * 4
    assert len(made) == 1


def test_a_failure_is_not_cached_and_a_dead_maker_leaves_nothing(index: Path) -> None:
    def fail(target: Path) -> None:
        (target / "half").write_text("")
        raise TaskError("no")

    with pytest.raises(TaskError, match="no"):
        cached("kind", "key", fail)
    left = Path(os.environ["SKYRL_CACHE"]) / "swe/kind/.key.part"
    left.mkdir()
    (left / "junk").write_text("")
    assert list(cached("kind", "key", lambda target: None).iterdir()) == []


def test_a_cache_that_can_not_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SKYRL_CACHE", str(tmp_path / "file"))
    with pytest.raises(SetupError, match=r"can't write the cache .*SKYRL_CACHE"):
        cached("kind", "key", lambda target: None)


def test_a_diff_names_its_files_and_no_line_of_it_is_taken_for_a_name(tmp_path: Path) -> None:
    diff = (
        "diff --git a/x.sql b/x.sql\n--- a/x.sql\n+++ b/x.sql\n@@ -1,2 +1,2 @@\n"
        "--- a/comment\n+++ b/comment\n context\n"
        "diff --git a/old b/new\nsimilarity index 100%\nrename from old\nrename to new\n"
        "--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n--- /dev/null\n+++ b/made\n@@ -0,0 +1 @@\n+x\n"
    )
    assert patched_files(diff) == {"x.sql", "old", "new", "gone", "made"}
    with pytest.raises(TaskError, match="does not apply to the task's tree: error: "):
        apply_patch(tmp_path, diff)
