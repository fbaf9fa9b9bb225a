"""A folder of JSON values, each under the hash of the question that it answers."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from skyrl_gym.errors import ConfigError

__all__ = ["Store", "address"]

# Tells what this process wrote from what was there before it; never compared with the clock.
_WRITER = f"{os.getpid()}-{time.time_ns()}"


def address(question: Any) -> str:
    """The name of a question: 64 hex digits over its canonical JSON."""
    text = json.dumps(question, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class Store:
    """One file an answer, written whole or not at all: several processes may share a folder.

    The first writer of an answer wins; whoever comes second is given the first one's.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()

    def get(self, name: str, *, own: bool = False) -> Any | None:
        """The answer under an address, or None; with `own`, only one that this process wrote.

        Raises:
            ConfigError: the file is damaged.
        """
        path = self._path(name)
        try:
            entry = json.loads(path.read_bytes())
            return entry["answer"] if not own or entry["by"] == _WRITER else None
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is no recorded answer ({error!r}): delete it and record again") from None

    def put(self, name: str, answer: Any, about: Any, *, replace: bool = False) -> Any:
        """Stores an answer and gives back the one that is stored: this one, or the one that was there before.

        `about` is kept beside it for people who look; with `replace`, what an earlier process wrote gives way.
        """
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        data = json.dumps({"about": about, "answer": answer, "by": _WRITER}, indent=1).encode()
        handle, part = tempfile.mkstemp(prefix=".", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            if replace and self.get(name, own=True) is None:
                os.replace(part, path)
                return answer
            os.link(part, path)
        except FileExistsError:
            return self.get(name)
        finally:
            Path(part).unlink(missing_ok=True)
        return answer

    def __len__(self) -> int:
        return sum(1 for _ in self.folder.glob("??/*.json"))

    def _path(self, name: str) -> Path:
        return self.folder / name[:2] / f"{name}.json"
