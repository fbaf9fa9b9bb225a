"""Suite files and provenance: read back, or refused by name."""

import json
from pathlib import Path

import pytest

from skyrl_gym.errors import ConfigError
from skyrl_gym.evaluate.provenance import model_identity, provenance
from skyrl_gym.evaluate.spec import EvalSpec, note_images, read_provenance, read_suite, write_provenance

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("file", sorted((ROOT / "suites").glob("*.yaml")), ids=lambda file: file.name)
def test_the_suites_that_ship_can_be_read(file: Path) -> None:
    suite = read_suite(file)
    assert suite.summary.endswith(".") and suite.entries


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("entries: {a: {env: x, smaples: 3}}", "entries.a.smaples: Extra inputs are not permitted"),
        ("entries: {a: {}}", "entries.a.env: Field required"),
        ("entries: {}", "entries: Dictionary should have at least 1 item"),
        ("entries: {a/b: {env: x}}", "an entry's name is a folder's"),
        ("entries: {a: {env: x, tasks: 0}}", "entries.a.tasks: Input should be greater than or equal to 1; got 0"),
        ("[", "is not YAML"),
    ],
)
def test_what_is_wrong_with_a_suite_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_suite(tmp_path / "mine.yaml")
    assert said in str(caught.value)


def test_provenance_gives_the_evaluation_back(tmp_path: Path) -> None:
    spec = EvalSpec(env="skyrl/memory-v0", model="m", kwargs={"split": "test"}, seeds=(1, 2), samples=3, k=(1, 2))
    write_provenance(tmp_path, spec, {"tasks": {"digest": "d"}}, ["i"])
    found, depends_on = read_provenance(tmp_path / "provenance.json")
    assert (found, depends_on["data"], depends_on["images"]) == (spec, {"digest": "d"}, {"i": None})
    assert {"packages", "python", "hardware", "git", "model", "created"} <= set(depends_on)
    assert depends_on["hardware"]["cores"]
    assert read_provenance(tmp_path)[0] == spec


def test_what_images_were_is_noted_once_they_have_been_used(tmp_path: Path) -> None:
    spec = EvalSpec(env="skyrl/swe-bench-lite-v0", model="m")
    write_provenance(tmp_path, spec, {"tasks": {"digest": "d"}}, ["i"])
    note_images(tmp_path, {"i": "sha256:1"})
    found, depends_on = read_provenance(tmp_path)
    assert (found, depends_on["data"], depends_on["images"]) == (spec, {"digest": "d"}, {"i": "sha256:1"})


def test_no_provenance_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't read"):
        read_provenance(tmp_path / "none.json")
    (tmp_path / "provenance.json").write_text(json.dumps({"format": 2}))
    with pytest.raises(ConfigError, match=r"no provenance\.json of format 1"):
        read_provenance(tmp_path)


def test_a_trained_model_is_told_from_its_base(tmp_path: Path) -> None:
    for name in ("base", "trained"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(b"0" * 100 + name[:1].encode())
    one, other = (model_identity(str(tmp_path / name))["digest"] for name in ("base", "trained"))
    assert one != other == model_identity(str(tmp_path / "trained"))["digest"]
    assert model_identity("some/model") == {"name": "some/model"}


def test_hardware_is_told() -> None:
    found = provenance()
    assert found["hardware"]["memory_gib"] >= 1 and isinstance(found["hardware"]["gpus"], list)
