"""What a result depends on besides its configuration."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["model_identity", "provenance"]

_PACKAGES = ("skyrl-suite", "gymnasium", "torch", "transformers", "trl", "vllm", "datasets")
_CHECKOUT = Path(__file__).resolve().parents[2]


def provenance() -> dict[str, Any]:
    """Packages, hardware and code.

    `git` is the commit of the working directory's repository, marked `-dirty` when files differ from it, and
    `source` that of this package where it runs from a checkout.
    """
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "hardware": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
            "gpus": _lines("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"),
        },
        "git": _commit(Path.cwd()),
        "source": _commit(_CHECKOUT) if (_CHECKOUT / ".git").exists() else None,
    }


def model_identity(name: str) -> dict[str, Any]:
    """Which model a name stands for: of a folder, a digest of its configuration and of the ends of its weights."""
    folder = Path(name).expanduser()
    if not (folder / "config.json").is_file():
        return {"name": name}
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(f"{file.name} {file.stat().st_size}".encode())
        digest.update(_ends(file))
    return {"name": name, "folder": str(folder.resolve()), "digest": digest.hexdigest()[:16]}


def _ends(file: Path) -> bytes:
    """The first and the last megabyte: a trained model differs from its base in them."""
    with file.open("rb") as weights:
        first = weights.read(2**20)
        weights.seek(max(0, file.stat().st_size - 2**20))
        return first + weights.read(2**20)


def _commit(folder: Path) -> str | None:
    command = ("git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return next(iter(_lines(*command)), None)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n")
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _lines(*command: str) -> list[str]:
    """What a program prints; nothing where it isn't there or fails."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return ran.stdout.strip().split("\n")
