"""What the README and the docs say is true: their programs run, their commands exist, their links lead somewhere."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel

from skyrl_gym.cli.app import app
from skyrl_gym.cli.needs import missing_needs
from skyrl_gym.errors import StopReason
from skyrl_gym.evaluate import open_run
from skyrl_gym.evaluate.spec import read_provenance
from skyrl_gym.registration import registered
from skyrl_gym.trainer.recipe import Recipe

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "envs").glob("*/README.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """The fenced code blocks of a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def run_python(code: str, cwd: Path) -> str:
    command = [sys.executable, "-W", "error", "-c", code]
    ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """The folder that the README has its reader write."""
    for language in ("python", "yaml"):
        for block in blocks(ROOT / "README.md", language):
            if named := re.match(r"# (mine/\S+)\n", block):
                file = tmp_path / named[1]
                file.parent.mkdir(exist_ok=True)
                file.write_text(block)
    assert sorted(file.name for file in (tmp_path / "mine").iterdir()) == ["guess.py", "registry.yaml"]
    return tmp_path / "mine"


def test_a_program_stands_within_the_first_25_lines_and_runs(tmp_path: Path) -> None:
    program = blocks(ROOT / "README.md", "python")[0]
    head = "\n".join((ROOT / "README.md").read_text().splitlines()[:25])
    assert program in head
    assert len([line for line in program.splitlines() if line]) <= 12
    assert re.search(r"[\d.]+ \w+$", run_python(program, tmp_path))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_python_block_runs(page: Path, tmp_path: Path) -> None:
    for block in blocks(page, "python"):
        if block.startswith("# Needs: ") and (missing := _missing(block)):
            pytest.skip(missing)
        run_python(block, tmp_path)


def _missing(block: str) -> str:
    """What a program says in its first line that it needs, and that is not to be had here."""
    needs = block.partition("\n")[0].removeprefix("# Needs: ").rstrip(".").split(", ")
    found = missing_needs(need for need in needs if need != "the package index")
    if "the package index" in needs and not found:
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed", "iniconfig"]
        if subprocess.run(command, capture_output=True, timeout=60, check=False).returncode:
            return "the package index can't be reached"
    return "; ".join(found)


def test_an_environment_of_ones_own_takes_40_lines(mine: Path) -> None:
    written = "".join(file.read_text() for file in mine.iterdir())
    assert len([line for line in written.splitlines() if line]) <= 40
    code = (
        "import gymnasium as gym, skyrl_gym\nfrom gymnasium.utils.env_checker import check_env\n"
        "skyrl_gym.register_file('mine/registry.yaml')\n"
        "env = gym.make('guess-v0', limit=2, split='test')\ncheck_env(env.unwrapped, skip_render_check=True)\n"
        "env.reset(options={'task': 0})\n"
        "steps = [env.step(skyrl_gym.ToolCall('guess', {'number': n})) for n in (5, env.unwrapped.secret)]\n"
        "print(steps[0][0][-1].text, steps[1][1], steps[1][2], steps[1][4]['stop_reason'])\nenv.close()"
    )
    assert run_python(code, mine.parent).split() == ["Lower.", "1.0", "True", "done"]


def test_a_training_loop_on_a_vector_takes_30_lines_with_its_environment() -> None:
    (loop,) = (block for block in blocks(ROOT / "docs/vector.md", "python") if "logits" in block)
    assert len([line for line in loop.splitlines() if line]) <= 30


def test_the_commands_take_it(mine: Path) -> None:
    command = [sys.executable, "-m", "skyrl_gym", "show", "guess-v0", "--registry", "mine/registry.yaml"]
    ran = subprocess.run(command, cwd=mine.parent, capture_output=True, text=True, timeout=60, check=True)
    assert "guess(number: integer)" in ran.stdout and "the number is below this." in ran.stdout


def test_it_is_trained_by_the_command_shown(mine: Path, tiny_model: Path) -> None:
    (command,) = (command for command in _commands() if command.startswith("skyrl train") and "guess-v0" in command)
    small = {
        "train.max_steps": 1,
        "train.prompts_per_step": 1,
        "train.num_generations": 2,
        "train.per_device_train_batch_size": 2,
        "rollout.max_tokens": 8,
        "eval.tasks": 1,
        "eval.samples": 1,
    }
    words = [*shlex.split(command), "--model", str(tiny_model), "--name", "guess"]
    words += [word for key, value in small.items() for word in ("--set", f"{key}={value}")]
    words[:3] = [sys.executable, "-m", "skyrl_gym", "train", str(ROOT / words[2])]
    ran = subprocess.run(words, cwd=mine.parent, capture_output=True, text=True, timeout=110, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "guess-v0" in ran.stdout and "Report: runs/guess/report.html" in ran.stdout
    assert "train 1/1" in ran.stderr
    folder = mine.parent / "runs" / "guess"
    assert (folder / "model" / "model.safetensors").is_file()
    assert (folder / "report.html").is_file()
    step = json.loads((folder / "metrics.jsonl").read_text())
    assert step["step"] == 1 and step["sampled_tokens"] > 0
    rollouts = [json.loads(line) for line in (folder / "rollout.jsonl").read_text().splitlines()]
    assert sum(rollouts[-1]["finished"].values()) == 2 and rollouts[-1]["live"] == 0
    spec, depends_on = read_provenance(folder / "eval" / "after")
    assert (spec.env, spec.model, spec.tasks) == ("guess-v0", "runs/guess/model", 1)
    assert depends_on["data"] == open_run(folder / "eval" / "after").config["tasks"]


def _commands() -> list[str]:
    text = "".join(page.read_text() for page in PAGES).replace("\\\n", " ")
    return sorted(set(re.findall(r"^(?:    |\$ )?(skyrl [a-z].*?)(?:  +#.*)?$", text, re.MULTILINE)))


@pytest.mark.parametrize("command", _commands())
def test_every_command_shown_has_a_known_verb_and_options(command: str) -> None:
    verbs = [[info.name] for info in app.registered_commands]
    verbs += [
        [group.name, info.name] for group in app.registered_groups for info in group.typer_instance.registered_commands
    ]
    words = shlex.split(command)
    (verb,) = [verb for verb in verbs if words[1 : 1 + len(verb)] == verb]
    shown = subprocess.run(
        [sys.executable, "-m", "skyrl_gym", *verb, "--help"],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    for option in (word for word in words if re.fullmatch(r"--?[a-z][\w-]*", word)):
        assert option in ("--debug", "--registry") or re.search(rf"{option}\b", shown), f"{option} of {command}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_table_of_environments_is_complete() -> None:
    text = (ROOT / "README.md").read_text()
    for entry in registered():
        if entry.id.startswith("skyrl/"):
            row = re.search(rf"^\| `{entry.id}` \|.*\| (.*) \|$", text, re.MULTILINE)
            assert row, f"{entry.id} is not in the README's table"
            assert row[1].replace("`", "") == (", ".join(entry.needs) or "nothing")


def test_the_table_of_stop_reasons_is_true() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \|.*\| (yes|no) \| (yes|no) \| (yes|no) \|$", (ROOT / "docs/errors.md").read_text(), re.MULTILINE
    )
    shown = {name: tuple(bit == "yes" for bit in bits) for name, *bits in rows}
    assert shown == {reason.value: (reason.grade, reason.valid, reason.retry) for reason in StopReason}


def test_every_key_of_a_recipe_is_in_the_table() -> None:
    def keys(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
        for name, field in model.model_fields.items():
            sections = [part for part in (field.annotation, *get_args(field.annotation)) if _is_section(part)]
            if sections and get_origin(field.annotation) is not tuple:
                yield from keys(sections[0], f"{prefix}{name}.")
            else:
                default = "required" if field.is_required() else field.get_default(call_default_factory=True)
                yield prefix + name, default if default == "required" else f"`{json.dumps(default).strip(chr(34))}`"

    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \|", (ROOT / "docs/training.md").read_text(), re.MULTILINE)
    shown = {key: default.replace("1e-6", "1e-06") for key, default in rows}
    assert shown == dict(keys(Recipe))


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def test_nothing_tells_of_the_machine_it_was_written_on() -> None:
    recipes = (path for path in sorted((ROOT / "recipes").rglob("*")) if path.is_file())
    for path in [*PAGES, ROOT / "Makefile", ROOT / "pyproject.toml", *recipes]:
        assert not re.search(r"/work/|/root/|/tmp/bash|pypi\.org|pythonhosted", path.read_text()), path
