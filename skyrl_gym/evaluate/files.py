"""Files that are written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["write_json", "write_whole"]


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Writes a file whole or not at all, and its folder if need be."""
    write_whole(path, [json.dumps(data, indent=2).encode(), b"\n"])


def write_whole(path: Path, pieces: Iterable[bytes]) -> None:
    """As `write_json`, for bytes. A reader sees the old file or the new one, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with part.open("wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
