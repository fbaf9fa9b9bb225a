"""What code search is measured against: ripgrep and grep, and the script that the paper's agent searches with.

The script is not ours to give: it is taken from a copy of SkyRL's repository on this machine, and runs in an
environment of its own with what it needs.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.code_truth import Place

HOME = Path.home() / ".cache" / "skyrl-gym" / "peers"
SCRIPT = "skyrl-agent/skyrl_agent/tasks/swebench/scripts/tools/search.py"
NEEDS = ("networkx", "rank-bm25", "chardet")
LIMIT_S = 600


class Away(Exception):
    """A peer that is not here; the text says what to do."""


@dataclass(frozen=True)
class Ran:
    """One command; `cpu_s` is of it and its children."""

    output: str
    wall_s: float
    cpu_s: float


def run(command: Sequence[str], folder: Path, env: dict[str, str] | None = None) -> Ran:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    ran = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False
    )
    wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Ran(ran.stdout, wall_s, cpu_s)


def regex_search(root: Path, pattern: str, *options: str) -> tuple[Ran, set[Place]]:
    """The lines of Python files that fit a pattern, by ripgrep.

    Raises:
        Away: it is not installed.
    """
    if shutil.which("rg") is None:
        raise Away("ripgrep is not installed: apt-get install ripgrep")
    command = ["rg", "--no-config", "--no-ignore", "-n", "-0", "-H", "-t", "py", *options, "-e", pattern, "."]
    ran = run(command, root)
    found = (re.match(r"(?:\./)?([^\0]+)\0(\d+):", line) for line in ran.output.split("\n"))
    return ran, {(match[1], int(match[2])) for match in found if match}


def grep(root: Path, text: str) -> Ran:
    """The lines that hold a text, by grep."""
    return run(["grep", "-rnIF", "--include=*.py", "-e", text, "."], root)


class PaperSearch:
    """The script of the paper's agent, a process for each question as there.

    Args:
        script: where it is; below `HOME` unless given.
        root: the tree; it is written into.

    Raises:
        Away: there is no script, or what it needs can't be installed.
    """

    def __init__(self, root: Path, script: Path | None = None) -> None:
        self.root = root
        self.script = script or HOME / "skyrl" / SCRIPT
        if not self.script.is_file():
            raise Away(f"no {self.script}: clone https://github.com/NovaSky-AI/SkyRL there, or give --paper FILE")
        self._python = HOME / "paper-search" / "bin" / "python"
        if not self._python.exists():
            venv.create(self._python.parents[1], with_pip=True)
            installed = run([str(self._python), "-m", "pip", "install", "--quiet", *NEEDS], root, dict(os.environ))
            if not run([str(self._python), "-c", "import networkx, rank_bm25"], root).output == "":
                raise Away(f"{NEEDS} can't be installed: {installed.output[-200:]}")

    def search(self, term: str) -> Ran:
        """What it prints for one term."""
        command = [str(self._python), str(self.script), "--search_terms", term]
        return run(command, self.root, {"REPO_PATH": str(self.root), "PATH": os.environ["PATH"]})


def copy_tree(source: Path, target: Path) -> Path:
    """A copy of the source files of a tree, without installed packages and what Python compiled."""
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("site-packages", "__pycache__"))
    for folder in (target, *(path for path in target.rglob("*") if path.is_dir() and not path.is_symlink())):
        folder.chmod(0o755)
    return target


def sdist(name: str, version: str) -> Path:
    """The unpacked sdist of a package, kept.

    Raises:
        Away: it can't be had.
    """
    home = HOME.parent / "trees"
    folder = home / f"{name}-{version}"
    if not folder.is_dir():
        home.mkdir(parents=True, exist_ok=True)
        get = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        run([*get, "--dest", str(home), f"{name}=={version}"], home, dict(os.environ))
        archive = folder.with_name(f"{folder.name}.tar.gz")
        if not archive.is_file():
            raise Away(f"the sdist of {name} {version} can't be downloaded")
        shutil.unpack_archive(archive, home, filter="data")
        archive.unlink()
    return folder
