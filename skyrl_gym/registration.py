"""`registry.yaml` -> `gymnasium.register`: an environment is one folder and a few lines of a registry file.

A registry file maps ids to entries::

    skyrl/memory-v0:
      entry_point: skyrl_gym.envs.memory.env:MemoryEnv
      summary: One sentence for `skyrl list`.
      needs: [bubblewrap]        # what `skyrl doctor` checks; optional
      kwargs: {chunk_words: 200} # constructor arguments, JSON values; optional
"""

from __future__ import annotations

import difflib
import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import yaml

from skyrl_gym.errors import ConfigError

if TYPE_CHECKING:
    from skyrl_gym.env import TextEnv

__all__ = ["RegistryEntry", "make_env", "read_registry", "register_builtin", "register_file", "registered"]


# Mirrors gymnasium.registry, which is as global, with what its specs have no field for.
_ENTRIES: dict[str, RegistryEntry] = {}


@dataclass(frozen=True)
class RegistryEntry:
    """One line of a registry file."""

    id: str
    entry_point: str
    summary: str = ""
    needs: tuple[str, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def read_registry(path: Path) -> tuple[RegistryEntry, ...]:
    """The entries of a registry file.

    Raises:
        ConfigError: the file is missing or an entry is malformed; the message names it.
    """
    try:
        data = yaml.safe_load(path.read_text()) or {}
    except OSError as error:
        raise ConfigError(f"can't read the registry file {path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a registry file maps environment ids to entries; got a {type(data).__name__}")
    return tuple(_entry(path, name, value) for name, value in data.items())


def register_file(path: str | Path) -> tuple[str, ...]:
    """Registers every entry of a registry file with Gymnasium and gives their ids.

    Registering the same entry again does nothing.

    Raises:
        ConfigError: the file is missing, malformed, or gives an id that is taken another meaning.
    """
    return tuple(_register(entry) for entry in read_registry(Path(path).expanduser()))


def register_builtin() -> None:
    """Registers the environments of this package; `import skyrl_gym` does it."""
    with importlib.resources.as_file(importlib.resources.files("skyrl_gym") / "registry.yaml") as path:
        register_file(path)


def registered() -> tuple[RegistryEntry, ...]:
    """Everything registered through a registry file, in order of id."""
    return tuple(_ENTRIES[env_id] for env_id in sorted(_ENTRIES))


def make_env(env_id: str, **kwargs: Any) -> TextEnv:
    """A registered environment without Gymnasium's wrappers: what the runner steps.

    Raises:
        ConfigError: unknown id (the nearest known one is named), or an argument the environment doesn't take.
    """
    from skyrl_gym.env import TextEnv

    if env_id not in gym.registry:
        near = difflib.get_close_matches(env_id, gym.registry, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"unknown environment {env_id!r}{hint} (`skyrl list` shows all; register_file adds yours)")
    try:
        env = gym.make(env_id, disable_env_checker=True, **kwargs).unwrapped
    except TypeError as error:
        raise ConfigError(f"{env_id}: {error}") from error
    if not isinstance(env, TextEnv):
        raise ConfigError(f"{env_id} is a {type(env).__name__}, not a skyrl_gym.TextEnv")
    return env


def _entry(path: Path, env_id: Any, value: Any) -> RegistryEntry:
    where = f"{path}: {env_id}"
    known = ("entry_point", "summary", "needs", "kwargs")
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: an entry has the keys {', '.join(known)}; got {value!r:.100}")
    if unknown := [key for key in value if key not in known]:
        near = difflib.get_close_matches(str(unknown[0]), known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}{hint}")
    if not isinstance(value.get("entry_point"), str) or ":" not in value["entry_point"]:
        raise ConfigError(f"{where}: entry_point is 'package.module:Class'; got {value.get('entry_point')!r}")
    needs, kwargs = value.get("needs") or (), value.get("kwargs") or {}
    return RegistryEntry(str(env_id), value["entry_point"], value.get("summary", ""), tuple(needs), kwargs)


def _register(entry: RegistryEntry) -> str:
    if _ENTRIES.get(entry.id) == entry:
        return entry.id
    if entry.id in gym.registry:
        raise ConfigError(f"the id {entry.id!r} is registered already, for {gym.registry[entry.id].entry_point}")
    gym.register(entry.id, entry_point=entry.entry_point, kwargs=dict(entry.kwargs))
    _ENTRIES[entry.id] = entry
    return entry.id
