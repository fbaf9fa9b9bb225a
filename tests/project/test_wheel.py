"""What is shipped: one top-level name, with its data."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel built from a copy of the tree as git would give it."""
    copy = tmp_path_factory.mktemp("copy") / "tree"
    ignored = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "runs")
    shutil.copytree(ROOT, copy, symlinks=True, ignore=ignored)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(copy / "dist"), str(copy)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return zipfile.ZipFile(next((copy / "dist").glob("*.whl")))


def test_it_installs_one_name(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"skyrl_gym"}


def test_every_file_of_the_package_is_in_it(wheel: zipfile.ZipFile) -> None:
    command = ["git", "ls-files", "skyrl_gym", "envs", "trainer", "registry.yaml"]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False).stdout.split()
    if not tracked:
        pytest.skip("not a git checkout")
    links = {"skyrl_gym/envs", "skyrl_gym/trainer", "skyrl_gym/registry.yaml"}
    wanted = {name if name.startswith("skyrl_gym/") else f"skyrl_gym/{name}" for name in set(tracked) - links}
    present = {name for name in wanted if (ROOT / name).exists()}
    assert present - set(wheel.namelist()) == set()
    assert {"skyrl_gym/registry.yaml", "skyrl_gym/py.typed"} <= set(wheel.namelist())


def test_nothing_compiled_is_in_it(wheel: zipfile.ZipFile) -> None:
    assert [name for name in wheel.namelist() if name.endswith(".pyc") or "__pycache__" in name] == []


def test_the_licence_and_the_command_are_in_it(wheel: zipfile.ZipFile) -> None:
    folder = next(name.partition("/")[0] for name in wheel.namelist() if ".dist-info/" in name)
    assert "Apache License" in wheel.read(f"{folder}/licenses/LICENSE").decode()
    assert "skyrl = skyrl_gym.cli:main" in wheel.read(f"{folder}/entry_points.txt").decode()


def test_it_works_from_another_folder(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    code = "import gymnasium as gym, skyrl_gym; print(skyrl_gym.__file__, gym.make('skyrl/memory-v0').spec.id)"
    command = [sys.executable, "-c", code]
    environment = {"PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ran.stdout.split() == [str(tmp_path / "skyrl_gym" / "__init__.py"), "skyrl/memory-v0"], ran.stderr
