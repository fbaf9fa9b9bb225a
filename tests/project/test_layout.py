"""The three links that join the root folders to the import package."""

import ast
import os
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINKS = {"envs": "../envs", "trainer": "../trainer", "registry.yaml": "../registry.yaml"}


@pytest.mark.parametrize("name", LINKS)
def test_a_link_inside_the_package_leads_to_the_root(name: str) -> None:
    link = ROOT / "skyrl_gym" / name
    repair = "git config core.symlinks true && git checkout -- skyrl_gym"
    assert link.is_symlink(), f"{link} is no link (this clone was made without symbolic links); repair it: {repair}"
    assert os.readlink(link) == LINKS[name]
    assert link.resolve() == ROOT / name


def test_git_holds_them_as_links() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-s", *(f"skyrl_gym/{name}" for name in LINKS)]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True).stdout
    assert [line.split()[0] for line in listed.splitlines()] == ["120000"] * len(LINKS)


def test_every_suite_is_a_folder_with_a_card() -> None:
    suites = [path for path in (ROOT / "envs").iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert suites
    for suite in suites:
        assert (suite / "README.md").is_file(), f"{suite.name} has no README.md: source of tasks, reward, limits"
        assert (suite / "__init__.py").is_file()


def test_every_module_is_in_a_layer_of_the_import_contract() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    placed = {name for layer in contract["layers"] for name in layer.split(" | ")}
    modules = {path.stem for path in (ROOT / "skyrl_gym").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert modules - {"__init__", "__pycache__"} == placed


def test_functions_and_files_are_small() -> None:
    """A page is what a reader can hold: no function over 60 lines, no file over 400."""
    for path in sorted([*(ROOT / "skyrl_gym").rglob("*.py"), *(ROOT / "envs").rglob("*.py")]):
        if "data" in path.parts:
            continue
        source = path.read_text()
        assert source.count("\n") <= 400, f"{path} is too long"
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno - len((ast.get_docstring(node) or "").splitlines())
                assert length <= 60, f"{path}: {node.name} is too long"
