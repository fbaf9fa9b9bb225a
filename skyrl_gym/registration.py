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
import inspect
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import gymnasium as gym
import yaml
from gymnasium.envs.registration import load_env_creator

from skyrl_gym.errors import ConfigError

if TYPE_CHECKING:
    from skyrl_gym.env import TextEnv

__all__ = [
    "RegistryEntry",
    "env_class",
    "make_env",
    "make_of_class",
    "read_registry",
    "register_builtin",
    "register_file",
    "registered",
    "settings_of",
]


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

    Registering the same entry again does nothing. The file's folder joins the import path (last), so that an
    entry point may name a module or package that lies beside it.

    Raises:
        ConfigError: the file is missing, malformed, or gives an id that is taken another meaning.
    """
    file = Path(path).expanduser().resolve()
    ids = tuple(_register(entry) for entry in read_registry(file))
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    return ids


def register_builtin() -> None:
    """Registers the environments of this package; `import skyrl_gym` does it."""
    with importlib.resources.as_file(importlib.resources.files("skyrl_gym") / "registry.yaml") as path:
        for entry in read_registry(path):
            _register(entry)


def registered() -> tuple[RegistryEntry, ...]:
    """Everything registered through a registry file, in order of id."""
    return tuple(_ENTRIES[env_id] for env_id in sorted(_ENTRIES))


def make_env(env_id: str, **kwargs: Any) -> TextEnv:
    """A registered environment without Gymnasium's wrappers: what the runner steps.

    Raises:
        ConfigError: unknown id or argument (the nearest known one is named), or a value it doesn't take.
    """
    _check_settings(env_id, kwargs, settings_of(env_id))
    try:
        return cast("TextEnv", gym.make(env_id, disable_env_checker=True, **kwargs).unwrapped)
    except TypeError as error:
        raise ConfigError(f"{env_id}: {error}") from error


def env_class(env_id: str) -> type[TextEnv]:
    """The class behind a registered id.

    Raises:
        ConfigError: unknown id (the nearest known one is named), or its entry point can't be loaded.
    """
    from skyrl_gym.env import TextEnv

    if env_id not in gym.registry:
        raise ConfigError(
            f"unknown environment {env_id!r}{_nearest(env_id, _ENTRIES)}; a registry file of your own adds others"
        )
    entry_point = gym.registry[env_id].entry_point
    try:
        found = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    except (ModuleNotFoundError, AttributeError) as error:
        raise ConfigError(f"{env_id}: can't load {entry_point}: {error}") from error
    if not (inspect.isclass(found) and issubclass(found, TextEnv)):
        raise ConfigError(f"{env_id} is {found!r}, not a skyrl_gym.TextEnv")
    return found


def settings_of(env_id: str) -> Mapping[str, inspect.Parameter]:
    """The constructor arguments of a registered environment, its own before those of its base classes.

    Raises:
        ConfigError: as `env_class`.
    """
    return _settings(env_class(env_id))


def make_of_class(cls: type[TextEnv], **kwargs: Any) -> TextEnv:
    """An environment of a class.

    Raises:
        ConfigError: unknown argument (the nearest known one is named), or a value it doesn't take.
    """
    _check_settings(cls.__name__, kwargs, _settings(cls))
    try:
        return cls(**kwargs)
    except TypeError as error:
        raise ConfigError(f"{cls.__name__}: {error}") from error


def _check_settings(name: str, given: Iterable[str], known: Iterable[str]) -> None:
    if unknown := [setting for setting in given if setting not in known]:
        raise ConfigError(f"{name} has no setting {unknown[0]!r}{_nearest(unknown[0], known)}")


def _settings(env_class: type[TextEnv]) -> Mapping[str, inspect.Parameter]:
    found: dict[str, inspect.Parameter] = {}
    for cls in env_class.__mro__:
        if "__init__" not in vars(cls):
            continue
        parameters = list(inspect.signature(vars(cls)["__init__"]).parameters.values())[1:]
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        found |= {p.name: p for p in named if p.name not in found}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found


def _nearest(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; it is one of {', '.join(names)}"


def _entry(path: Path, env_id: Any, value: Any) -> RegistryEntry:
    where = f"{path}: {env_id}"
    known = ("entry_point", "summary", "needs", "kwargs")
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: an entry has the keys {', '.join(known)}; got {value!r:.100}")
    if unknown := [key for key in value if key not in known]:
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}{_nearest(str(unknown[0]), known)}")
    if not isinstance(value.get("entry_point"), str) or ":" not in value["entry_point"]:
        raise ConfigError(f"{where}: entry_point is 'package.module:Class'; got {value.get('entry_point')!r}")
    needs, kwargs = value.get("needs") or [], value.get("kwargs") or {}
    if not isinstance(needs, list):
        raise ConfigError(f"{where}: needs is a list; got {needs!r}")
    if not isinstance(kwargs, dict):
        raise ConfigError(f"{where}: kwargs is a mapping; got {kwargs!r}")
    return RegistryEntry(str(env_id), value["entry_point"], value.get("summary", ""), tuple(needs), kwargs)


def _register(entry: RegistryEntry) -> str:
    if _ENTRIES.get(entry.id) == entry:
        return entry.id
    if entry.id in gym.registry:
        raise ConfigError(f"the id {entry.id!r} is registered already, for {gym.registry[entry.id].entry_point}")
    # Gymnasium doesn't tell a vector's entry point what it is a vector of, so its name says that.
    vector = f"skyrl_gym.vector.entry:{entry.entry_point.replace(':', '.')}"
    gym.register(entry.id, entry_point=entry.entry_point, kwargs=dict(entry.kwargs), vector_entry_point=vector)
    _ENTRIES[entry.id] = entry
    return entry.id
