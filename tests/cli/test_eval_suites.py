"""`skyrl eval` over several environments and suite files, repeated from its provenance, and within bounds."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.evaluate import open_run

Skyrl = Callable[..., Any]
SHORT = ("--set", "document_words=40", "--set", "chunk_words=40")


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def suite() -> str:
    entries = {
        "short": {"env": "skyrl/memory-v0", "kwargs": {"document_words": 40}, "tasks": 2},
        "colours": {"env": "colour-v0", "samples": 2},
        "paint": {"env": "colour-v0", "kwargs": {"fault": "infra"}},
        "moon": {"env": "skyrl/moon-v0"},
    }
    Path("several.yaml").write_text(json.dumps({"summary": "Several.", "entries": entries}))
    return "several.yaml"


def test_a_failure_in_one_entry_surfaces_and_stops_no_other(skyrl: Skyrl, colours: str, suite: str) -> None:
    ran = skyrl("eval", suite, "--registry", colours, "--model", "probe:nothing", "--out", "suite")
    assert ran.status == 1
    assert "2/2" in ran.out and "6/6" in ran.out and "0/3" in ran.out
    assert "moon: skyrl/moon-v0 is not registered" in ran.out
    assert "paint: no trajectory could be judged: 3 env_error" in ran.out
    assert ran.err.splitlines()[-1].startswith("skyrl: 1 of 4 entries have no result: paint")
    found = json.loads(Path("suite/suite.json").read_text())["entries"]
    assert {name: bool(entry["problem"]) for name, entry in found.items()} == {
        "short": False,
        "colours": False,
        "paint": True,
        "moon": True,
    }
    assert (found["paint"]["judged"], found["paint"]["total"]) == (0, 3)
    assert list(open_run("suite").evaluations) == ["short", "colours", "paint"]


def test_a_suite_goes_on_and_other_settings_are_refused(skyrl: Skyrl, colours: str, suite: str) -> None:
    words = ["eval", suite, "--registry", colours, "--model", "probe:nothing", "--out", "suite"]
    skyrl(*words)
    journal = Path("suite/colours/trajectories.jsonl")
    before = journal.read_bytes()
    skyrl(*words)
    assert journal.read_bytes() == before
    other = skyrl(*words, "--temperature", "0.5")
    assert other.status == 2 and "other settings" in other.err
    assert skyrl("view", "suite", "--report", "--no-browser").status == 0
    assert Path("suite/short/report.html").is_file()


def test_several_environments_make_a_suite(skyrl: Skyrl, colours: str) -> None:
    words = ["eval", "colour-v0", "skyrl/memory-v0", "--registry", colours, "--model", "probe:nothing", "--tasks", "2"]
    ran = skyrl(*words, "--out", "both")
    assert ran.status == 0, ran.err
    assert list(open_run("both").evaluations) == ["colour-v0", "skyrl-memory-v0"]
    twice = skyrl(*words[:2], "colour-v0", *words[3:])
    assert twice.status == 2 and "'colour-v0' would be evaluated twice" in twice.err


def test_an_evaluation_is_repeated_from_its_provenance(skyrl: Skyrl) -> None:
    words = ["eval", "skyrl/memory-v0", "--model", "gold", "--tasks", "3", "-n", "2", "--seed", "4,5", *SHORT]
    assert skyrl(*words, "--out", "first").status == 0
    again = skyrl("eval", "--from", "first/provenance.json", "--out", "second")
    assert again.status == 0, again.err
    first, second = open_run("first"), open_run("second")
    assert first.config == second.config
    assert first.summary == second.summary or first.summary.reward == second.summary.reward  # type: ignore[union-attr]
    other = skyrl("eval", "--from", "first", "--model", "probe:nothing", "--out", "other")
    assert other.status == 0, other.err
    assert open_run("other").config == {**first.config, "policy": "nothing"}
    assert skyrl("compare", "first", "other").status == 0
    told = json.loads(Path("first/provenance.json").read_text())
    told["depends_on"]["packages"]["skyrl-suite"] = "0.0.1"
    Path("first/provenance.json").write_text(json.dumps(told))
    assert "Then skyrl-suite was 0.0.1, now it is" in skyrl("eval", "--from", "first", "--out", "third").out
    told["depends_on"]["data"]["digest"] = "0" * 16
    Path("first/provenance.json").write_text(json.dumps(told))
    refused = skyrl("eval", "--from", "first", "--out", "fourth")
    assert refused.status == 2 and "are others now" in refused.err
    assert not Path("fourth/run.json").exists()


def test_a_function_answers(skyrl: Skyrl) -> None:
    Path("my_script.py").write_text(
        "from skyrl_gym import ToolCall\ndef say(prompt):\n    return ToolCall('answer', {'text': 'x'})\n"
    )
    ran = skyrl("eval", "skyrl/memory-v0", "--model", "scripted:my_script:say", "--tasks", "2", *SHORT)
    assert ran.status == 0, ran.err
    assert "2/2" in ran.out and "2 completions uncounted" in ran.out
    wrong = skyrl("eval", "skyrl/memory-v0", "--model", "scripted:my_script:sing", "--tasks", "2", *SHORT)
    assert wrong.status == 2 and "a function from a prompt to an answer" in wrong.err


def test_a_limit_that_stops_is_told_and_starves(skyrl: Skyrl) -> None:
    Path("slow_script.py").write_text("import time\ndef say(prompt):\n    time.sleep(30)\n")
    words = ["eval", "skyrl/memory-v0", "--model", "gold", "--tasks", "3", *SHORT, "--out", "here"]
    ran = skyrl(*words, "--max-minutes", "0")
    assert ran.status == 1
    assert "Stopped: the limit of 0 s is over. --out here goes on." in ran.out and "3 not run" in ran.out
    assert "no trajectory could be judged: 3 not run" in ran.err
    assert skyrl(*words).status == 0


def test_too_small_a_share_judged_ends_with_1(skyrl: Skyrl, colours: str) -> None:
    registry = Path(colours)
    source = registry.with_name("colours_for_test.py")
    source.write_text(
        source.read_text()
        .replace("float(self.given ==", "self.task.id == 'snow' and float(self.given ==")
        .replace(
            "def grade(self):",
            "def grade(self):\n        if self.task.id != 'snow':\n            raise EnvError('402 payment required')",
        )
    )
    words = ["eval", "colour-v0", "--registry", colours, "--model", "probe:nothing"]
    ran = skyrl(*words, "--out", "here")
    assert ran.status == 1
    assert "only 1 of 3 trajectories could be judged: 2 env_error" in ran.err
    assert "1/3" in ran.out and "2 env_error" in ran.out
    assert skyrl(*words, "--out", "there", "--min-judged", "0.3").status == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "gold", "--serve", "x"], "give --model, or --serve"),
        ([], "give --model, or --serve"),
        (["--model", "gold", "--concurrency", "many"], "a number from 1 on, or auto; got 'many'"),
        (["--model", "gold", "--price", "1"], "two numbers like 0.5,1.5: of a million tokens in and out; got '1'"),
        (["--model", "gold", "--max-cost", "1"], "needs the prices"),
        (["--model", "gold", "--seed", "1,1"], "--seed gives a number twice"),
        (["--from", "x"], "--from says what is evaluated"),
    ],
)
def test_wrong_words_are_one_line(skyrl: Skyrl, words: list[str], said: str) -> None:
    ran = skyrl("eval", "skyrl/memory-v0", "--tasks", "1", *words)
    assert ran.status == 2 and said in ran.err
