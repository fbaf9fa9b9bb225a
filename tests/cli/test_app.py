"""The application as a whole: help, versions, exit statuses, one line for every error."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from skyrl_gym.cli.app import app
from skyrl_gym.cli.boundary import keeping, one_line

Skyrl = Callable[..., Any]
VERBS = ["list", "show", "play", "eval", "train", "view", "export", "serve-env", "gateway", "doctor"]


def test_help_names_every_verb_and_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from skyrl_gym.cli import main\n"
        "try: main(['--help'])\n"
        "finally: print(sorted({'torch', 'transformers', 'datasets', 'trl'} & set(sys.modules)))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert all(verb in ran.stdout for verb in VERBS)
    assert ran.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_has_examples(skyrl: Skyrl, verb: str) -> None:
    ran = skyrl(verb, "--help")
    assert ran.status == 0
    assert f"skyrl {verb}" in ran.out.partition("Examples")[2]


def test_the_module_runs_as_the_command_does() -> None:
    command = [sys.executable, "-m", "skyrl_gym", "--version"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.startswith("skyrl 0.")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lits"], "No such command 'lits'. Did you mean 'list'?"),
        (["list", "--fast"], "No such option: --fast"),
        (["show"], "Missing argument 'ENV'"),
        (["show", "skyrl/memry-v0"], "did you mean 'skyrl/memory-v0'?"),
        (["show", "skyrl/memory-v0", "--set", "chunkwords=3"], "did you mean 'chunk_words'?"),
        (["show", "skyrl/memory-v0", "--set", "split=dev"], "has the splits train, test; got 'dev'"),
        (["list", "--registry", "nowhere.yaml"], "can't read the registry file"),
        (["play", "skyrl/memory-v0", "--task", "no-such"], "has no task 'no-such'"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(skyrl: Skyrl, words: list[str], said: str) -> None:
    ran = skyrl(*words)
    assert ran.status == 2
    assert said in ran.err
    assert ran.err.startswith("skyrl: ") and ran.err.count("\n") == 1
    assert "Traceback" not in ran.err


def test_debug_shows_the_traceback_and_then_the_line(skyrl: Skyrl) -> None:
    ran = skyrl("show", "nothing-v0", "--debug")
    assert ran.status == 2
    assert "Traceback" in ran.err
    assert ran.err.splitlines()[-1].startswith("skyrl: unknown environment 'nothing-v0'")


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "skyrl: interrupted"),
        (OSError(28, "No space left on device", "runs/x"), 1, "skyrl: the disk is full (runs/x): make room"),
        (PermissionError(13, "Permission denied", "runs"), 1, "skyrl: Permission denied (runs)"),
        (ZeroDivisionError("a\nb"), 1, "skyrl: a bug: ZeroDivisionError: a b (again with --debug"),
    ],
)
def test_every_exception_has_a_status(
    capsys: pytest.CaptureFixture[str], error: BaseException, status: int, said: str
) -> None:
    with pytest.raises(Exception) as ended, one_line(debug=False):
        raise error
    assert ended.value.exit_code == status  # type: ignore[attr-defined]
    printed = capsys.readouterr().err
    assert printed.startswith(said) and printed.count("\n") == 1


def test_an_error_says_where_finished_work_is(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Exception), one_line(debug=False), keeping(folder):  # noqa: B017
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "skyrl: interrupted\n"
    folder.mkdir()
    (folder / "trajectories.jsonl").write_text("{}\n")
    with pytest.raises(Exception), one_line(debug=False), keeping(folder):  # noqa: B017
        raise KeyboardInterrupt
    assert capsys.readouterr().err == f"skyrl: interrupted; finished work is kept in {folder}\n"


def test_a_reader_that_left_is_no_error() -> None:
    command = f"{sys.executable} -m skyrl_gym list | head -c 1; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in ran.stderr and "Exception" not in ran.stderr


def test_no_words_show_the_help(skyrl: Skyrl) -> None:
    assert "Commands" in skyrl().out
    assert app.info.name == "skyrl"
