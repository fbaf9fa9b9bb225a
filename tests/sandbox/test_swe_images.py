"""The SWE suite on a real engine: an image with a repository, of this machine's own programs, without a registry."""

import asyncio
import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from skyrl_gym import ToolCall
from skyrl_gym.envs.swe.instance import read_instance
from skyrl_gym.envs.swe.packages import runtime
from skyrl_gym.envs.swe.solve import gold_actions
from skyrl_gym.policy import ScriptedPolicy
from skyrl_gym.rollout import RolloutLimits, RolloutRequest, Runner, Trajectory
from skyrl_gym.sandbox import default_ledger
from skyrl_gym.tasks import Task

PACKAGES = ("bash", "coreutils", "diffutils", "findutils", "git", "grep", "sed", "tar")
GOLD = "--- a/moon.py\n+++ b/moon.py\n@@ -1,2 +1,2 @@\n def half(x):\n-    return x // 3\n+    return x // 2\n"
TESTS = (
    "--- /dev/null\n+++ b/tests/test_moon.py\n@@ -0,0 +1,8 @@\n+from moon import half\n+\n+\n"
    "+def test_half():\n+    assert half(6) == 3\n+\n+def test_zero():\n+    assert half(0) == 0\n"
)
ROW = {
    "instance_id": "half__moon-1",
    "repo": "half/moon",
    "patch": GOLD,
    "test_patch": TESTS,
    "problem_statement": "half(6) is 2.",
    "FAIL_TO_PASS": ["tests/test_moon.py::test_half"],
    "PASS_TO_PASS": ["tests/test_moon.py::test_zero"],
    "activate": "export PYTHONPATH=/opt/packages",
}
SCRIPT = (
    f"set -uxo pipefail\ncd /testbed\ngit apply - <<'END'\n{TESTS}END\n: '>>>>> Start Test Output'\n"
    "python3 -m pytest -rA tests\n: '>>>>> End Test Output'\ngit checkout HEAD tests\n"
)

# What images of SWE-bench have: conda's activation, an environment, and a script that begins so. There is no pip here,
# and no network in the container, which the script does not mind.
ACTIVATION = """
conda() { [ "$1" = activate ] && export PATH="/opt/miniconda3/envs/$2/bin:$PATH" CONDA_DEFAULT_ENV="$2"; }
"""
ENVIRONMENT_PYTHON = """#!/bin/sh
export PYTHONPATH="/opt/packages${PYTHONPATH:+:$PYTHONPATH}"
exec /usr/local/bin/python3 "$@"
"""
PUBLISHED = f"""#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
git config --global --add safe.directory /testbed
cd /testbed
git status
git show
git -c core.fileMode=false diff HEAD
source /opt/miniconda3/bin/activate
conda activate testbed
python -m pip install -e .
git checkout HEAD tests/test_old.py
git apply -v - <<'EOF_114329324912'
{TESTS}
EOF_114329324912
: '>>>>> Start Test Output'
python -m pytest -rA tests/test_moon.py
: '>>>>> End Test Output'
git checkout HEAD tests/test_old.py
"""
PUBLISHED_ROW = {**{name: ROW[name] for name in ROW if name != "activate"}, "eval_script": PUBLISHED}


@pytest.fixture(scope="module")
def swe_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Dockerfile for it. The history of the repository goes on after the commit that is checked out."""
    if shutil.which("dpkg") is None:
        pytest.skip("the image is made of Debian's packages")
    folder = tmp_path_factory.mktemp("swe")
    repository = folder / "testbed"
    repository.mkdir()
    for text, message in (("3", "Before"), ("2", "The repair that nobody must see")):
        (repository / "moon.py").write_text(f"def half(x):\n    return x // {text}\n")
        (repository / "tests").mkdir(exist_ok=True)
        (repository / "tests" / "test_old.py").write_text("def test_old():\n    pass\n")
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", message]):
            who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
            subprocess.run(["git", *who, *words], cwd=repository, check=True, capture_output=True, timeout=30)
    subprocess.run(["git", "reset", "-q", "--hard", "HEAD~1"], cwd=repository, check=True, timeout=30)
    with tarfile.open(folder / "root.tar", "w") as tar:
        _fill(tar)
        tar.add(repository, "testbed", filter=_as_root)
        _write(tar, "opt/miniconda3/bin/activate", ACTIVATION)
        for name in ("python", "python3"):
            _write(tar, f"opt/miniconda3/envs/testbed/bin/{name}", ENVIRONMENT_PYTHON)
    (folder / "Dockerfile").write_text(
        "FROM scratch\nADD root.tar /\nENV PATH=/usr/local/bin:/usr/bin:/bin HOME=/root\n"
    )
    shutil.rmtree(repository)
    return folder


def _fill(tar: tarfile.TarFile) -> None:
    for name in ("bin", "lib", "lib64"):
        link = tarfile.TarInfo(name)
        link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
        tar.addfile(link)
    for name in ("tmp", "root", "etc", "usr/bin", "usr/lib", "usr/lib64", "usr/local/bin"):
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
        tar.addfile(entry)
    added: set[str] = set()
    listed = subprocess.run(["dpkg", "-L", *PACKAGES], capture_output=True, text=True, check=True).stdout.split("\n")
    programs = [name for name in listed if "/bin/" in name or "/lib/git-core/" in name]
    python = os.path.realpath(sys.executable)
    for name in [*programs, "/usr/bin/sh", python]:
        _add(tar, name, added)
    for place in (sysconfig.get_path("stdlib"), sysconfig.get_config_var("LIBDIR")):
        kept = [path for path in sorted(Path(place).rglob("*")) if _is_needed(path)]
        for path in kept:
            _add(tar, str(path), added)
    link = tarfile.TarInfo("usr/local/bin/python3")
    link.type, link.linkname = tarfile.SYMTYPE, python
    tar.addfile(link)
    packages = next(m.source for m in runtime(read_instance(Task.from_row(ROW))).mounts if m.target == "/opt/packages")
    tar.add(packages, "opt/packages", filter=_as_root)


def _write(tar: tarfile.TarFile, name: str, text: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.size = 0o755, len(text)
    tar.addfile(entry, io.BytesIO(text.encode()))


def _is_needed(path: Path) -> bool:
    left_out = {
        "site-packages",
        "dist-packages",
        "test",
        "tests",
        "idlelib",
        "tkinter",
        "lib2to3",
        "ensurepip",
        "__pycache__",
    }
    if path.parent == Path(sysconfig.get_config_var("LIBDIR")):
        return path.name.startswith("libpython") and ".so" in path.name
    inside = path.is_relative_to(sysconfig.get_path("stdlib"))
    return inside and path.is_file() and not left_out & set(path.parts) and path.suffix not in (".a", ".pyc")


def _add(tar: tarfile.TarFile, name: str, added: set[str]) -> None:
    real = f"/usr{name}" if name.startswith("/bin/") else name
    if real in added or not os.path.isfile(name):
        return
    added.add(real)
    tar.add(os.path.realpath(name), real.lstrip("/"), filter=_as_root)
    with open(name, "rb") as file:
        is_program = file.read(4) == b"\x7fELF"
    if is_program:
        found = subprocess.run(["ldd", name], capture_output=True, text=True).stdout.split()
        for library in (word for word in found if word.startswith("/")):
            _add(tar, library if library.startswith("/usr/") else f"/usr{library}", added)


def _as_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_an_image_is_a_task_on_a_real_engine(
    engine: str, engine_address: Any, swe_image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine_address(engine))
    env: Any = gym.make("skyrl/swe-v0").unwrapped

    def play(row: Any, *commands: str) -> tuple[list[str], float]:
        env.reset(options={"task": row})
        seen = [str(env.step(ToolCall("bash", {"command": text}))[0][-1].content) for text in commands]
        return seen, env.step(ToolCall("submit"))[1]

    apply = f"git apply - <<'END'\n{GOLD}END"
    for row in ({**ROW, "image": str(swe_image)}, {**ROW, "image": str(swe_image), "eval_script": SCRIPT}):
        (log, held, found), reward = play(
            row,
            "git log --all --format=%s; git fsck --lost-found",
            "git cat-file --batch --batch-all-objects | grep -c 'x // 2'",
            "grep -rlF -e 'x // 2' -e 'half(6)' /testbed /tmp /root /etc",
        )
        assert (log, held.split()[0], reward) == ("Initial commit", "0", 0.0)
        assert "/testbed" not in found
        assert play(row, apply)[1] == 1.0
        assert play(row, "echo 'import os; os._exit(0)' >> moon.py")[1] == 0.0
    env.close()
    assert default_ledger().live == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_an_image_of_the_published_layout_is_prepared_once_for_a_group_and_its_own_script_grades(
    engine: str, engine_address: Any, swe_image: Path, preparations: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of the three begin with the snapshot that was taken of the first, once its history was cleaned."""
    monkeypatch.setenv("DOCKER_HOST", engine_address(engine))
    task = Task.from_row({**PUBLISHED_ROW, "image": str(swe_image)})
    look = ToolCall("bash", {"command": "git log --all --format=%s; git status --short; command -v python"})
    gold = ScriptedPolicy(lambda prompt: [look, *gold_actions(task)][len(prompt.messages) // 2])
    nothing = ScriptedPolicy(lambda prompt: [look, ToolCall("submit")][len(prompt.messages) // 2])

    async def play(policy: ScriptedPolicy, samples: int) -> list[Trajectory]:
        requests = [RolloutRequest("skyrl/swe-v0", task, "group", sample=n) for n in range(samples)]
        return [found async for found in Runner(policy, limits=RolloutLimits(live=3)).run(requests)]

    played = asyncio.run(play(gold, 3))
    assert [(found.reward, found.error) for found in played] == [(1.0, None)] * 3
    assert preparations == [1]
    for found in played:
        seen = "Initial commit\n/opt/miniconda3/envs/testbed/bin/python"
        assert str(found.turns[0].observations[0].content) == seen
        assert "+    return x // 2" in found.artifacts["patch"]
    (idle,) = asyncio.run(play(nothing, 1))
    assert (idle.reward, idle.metrics["tests_ran"], idle.artifacts) == (0.0, 1.0, {"patch": ""})
    assert default_ledger().live == 0
