"""What an evaluation was asked to do, so that it can be asked again; and files of several of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from skyrl_gym.errors import ConfigError
from skyrl_gym.evaluate.files import write_json
from skyrl_gym.evaluate.provenance import model_identity, provenance
from skyrl_gym.policy import Sampling
from skyrl_gym.tasks import TaskSet

__all__ = [
    "EvalSpec",
    "Suite",
    "SuiteEntry",
    "images_of",
    "note_images",
    "read_provenance",
    "read_suite",
    "write_provenance",
]

PROVENANCE = "provenance.json"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EvalSpec(_Strict):
    """One evaluation: an environment, a model and how it is sampled. `tasks` takes the first so many."""

    env: str
    model: str
    kwargs: dict[str, Any] = Field(default_factory=dict)
    tasks: Annotated[int | None, Field(ge=1)] = None
    samples: Annotated[int, Field(ge=1)] = 1
    seeds: tuple[int, ...] = (0,)
    temperature: Annotated[float, Field(ge=0)] = 1.0
    max_tokens: Annotated[int, Field(ge=1)] = 512
    max_context: Annotated[int | None, Field(ge=1)] = None
    k: tuple[int, ...] | None = None

    @property
    def sampling(self) -> Sampling:
        """For the policy; the seed is that of the first."""
        return Sampling(self.temperature, max_tokens=self.max_tokens, seed=self.seeds[0])


class SuiteEntry(_Strict):
    """One line of a suite: what it leaves out is the command's to say."""

    env: str
    kwargs: dict[str, Any] = Field(default_factory=dict)
    tasks: Annotated[int | None, Field(ge=1)] = None
    samples: Annotated[int | None, Field(ge=1)] = None
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    max_context: Annotated[int | None, Field(ge=1)] = None


class Suite(_Strict):
    """Several evaluations of one model, by name."""

    summary: str = ""
    entries: dict[str, SuiteEntry] = Field(min_length=1)


def read_suite(path: Path) -> Suite:
    """A suite file.

    Raises:
        ConfigError: it is none; the message names the key.
    """
    try:
        data = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"can't read the suite {path}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from None
    suite: Suite = _checked(Suite, data, str(path))
    if bad := [name for name in suite.entries if not name.replace("-", "").replace(".", "").isalnum()]:
        raise ConfigError(f"{path}: an entry's name is a folder's: letters, digits, '-' and '.'; got {bad[0]!r}")
    return suite


def write_provenance(folder: Path, spec: EvalSpec, config: Mapping[str, Any], images: Sequence[str] = ()) -> None:
    """Writes down all that it takes to repeat an evaluation, and what its result depends on besides.

    Container images are known by name then; `note_images` adds what they were when they have been used.
    """
    depends = {
        "data": config.get("tasks"),
        "images": dict.fromkeys(images),
        "model": model_identity(spec.model),
        **provenance(),
    }
    write_json(folder / PROVENANCE, {"format": 1, "evaluation": spec.model_dump(mode="json"), "depends_on": depends})


def images_of(tasks: TaskSet) -> list[str]:
    """The container images that tasks name."""
    return sorted({str(task.data["image"]) for task in tasks if task.data.get("image")})


def note_images(folder: Path, digests: Mapping[str, str | None]) -> None:
    """Adds the digests of container images, by name, to the provenance of a run."""
    data = json.loads((folder / PROVENANCE).read_bytes())
    data["depends_on"]["images"] = dict(digests)
    write_json(folder / PROVENANCE, data)


def read_provenance(path: Path) -> tuple[EvalSpec, dict[str, Any]]:
    """The evaluation of a provenance.json, and what its result depended on.

    Raises:
        ConfigError: it is none.
    """
    file = path / PROVENANCE if path.is_dir() else path
    try:
        data = json.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"can't read {file}: {error.strerror}; `skyrl eval` writes one into each run") from None
    except ValueError as error:
        raise ConfigError(f"{file} is damaged: {error}") from None
    if not isinstance(data, dict) or data.get("format") != 1:
        raise ConfigError(f"{file} is no provenance.json of format 1")
    return _checked(EvalSpec, data.get("evaluation"), str(file)), dict(data.get("depends_on") or {})


def _checked(model: type[Any], data: Any, where: str) -> Any:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{where}: {key or 'the file'}: {first['msg']}; got {first['input']!r:.80}") from None
