"""Run folders: what is read back, and what is said when they are damaged."""

import json
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from skyrl_gym.errors import ConfigError
from skyrl_gym.evaluate import open_run, summarise
from skyrl_gym.evaluate.runs import provenance, write_json
from skyrl_gym.messages import ToolCall, assistant, tool_result
from skyrl_gym.rollout import Journal, Trajectory, Turn

Make = Callable[..., Trajectory]
# What other tools take for line ends, and what breaks encoders.
AWKWARD = "a\u2028b\u2029c\x85d\x1ce\x0bf\x0cg\r\nh\ri\x00j\ud800k\U0001f600l\u202em"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_json(tmp_path / "run" / "run.json", {"kind": "train", "config": {"model": "m"}, "provenance": provenance()})
    return tmp_path / "run"


def test_awkward_characters_survive_saving_and_loading(folder: Path, make: Make) -> None:
    call = ToolCall("look", {"at": AWKWARD}, "c1")
    turn = Turn(assistant(AWKWARD, call), (tool_result(call, AWKWARD),))
    written = [make(1.0, "a", turns=(turn,), task_id=AWKWARD), make(0.0, "b")]
    with Journal(folder / "trajectories.jsonl") as journal:
        for trajectory in written:
            journal.append(trajectory)
    assert list(open_run(folder).trajectories()) == written


def test_a_training_has_steps_and_two_evaluations(folder: Path, make: Make) -> None:
    (folder / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n{"step": 2, "reward": 0.75}\n{"step": 3, "rew')
    for name, reward in (("before", 0.0), ("after", 1.0)):
        write_json(folder / "eval" / name / "run.json", {"kind": "eval"})
        write_json(folder / "eval" / name / "summary.json", summarise([make(reward)]).to_json())
    run = open_run(folder)
    assert (run.kind, run.name, run.config["model"], run.summary) == ("train", "run", "m", None)
    assert [step["reward"] for step in run.metrics()] == [0.5, 0.75]
    rewards = {name: held.summary.reward.value for name, held in run.evaluations.items() if held.summary}
    assert rewards == {"before": 0.0, "after": 1.0}


def test_a_run_that_just_began_is_empty(folder: Path) -> None:
    run = open_run(folder)
    assert (list(run.trajectories()), run.metrics(), run.evaluations) == ([], [], {})


def test_trajectories_are_read_one_at_a_time(folder: Path, make: Make) -> None:
    with Journal(folder / "trajectories.jsonl") as journal:
        journal.append(make())
    with (folder / "trajectories.jsonl").open("ab") as file:
        file.write(b"damage\n")
    stream = open_run(folder).trajectories()
    assert next(stream) == make()
    with pytest.raises(ConfigError, match=r"trajectories.jsonl, line 2: not a trajectory"):
        next(stream)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("run.json", "{", "run.json is damaged"),
        ("run.json", "[]", "not an object"),
        ("run.json", '{"kind": "dance"}', "eval, suite, train; got 'dance'"),
        ("summary.json", '{"tasks": 1}', "is no summary"),
        ("summary.json", "\x00", "summary.json is damaged"),
        ("metrics.jsonl", '{"step": 1}\nx\n', "metrics.jsonl, line 2 is damaged"),
    ],
)
def test_damage_is_one_line_that_names_the_file(folder: Path, name: str, text: str, said: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        run = open_run(folder)
        _ = run.summary, run.metrics()
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_no_run_folder_says_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is no run folder.*skyrl eval"):
        open_run(tmp_path)
    with pytest.raises(ConfigError, match="is no run folder"):
        open_run(tmp_path / "nowhere")


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    file = tmp_path / "summary.json"
    write_json(file, {"value": 0, "text": "x" * 100_000})
    ended = threading.Event()

    def write() -> None:
        for value in range(60):
            write_json(file, {"value": value, "text": "x" * 100_000})
        ended.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not ended.is_set():
        assert len(json.loads(file.read_bytes())["text"]) == 100_000
    thread.join()
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]
    assert file.stat().st_mode & 0o777 == 0o666 & ~_umask()


def test_a_value_that_is_not_json_leaves_the_old_file(tmp_path: Path) -> None:
    write_json(tmp_path / "run.json", {"a": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "run.json", {"a": object()})
    assert json.loads((tmp_path / "run.json").read_text()) == {"a": 1}
    assert len(list(tmp_path.iterdir())) == 1


def test_provenance_names_the_commit_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert provenance()["git"] is None
    _git("init", "-q")
    (tmp_path / "recipe.yaml").write_text("a")
    _git("add", ".")
    _git("-c", "user.name=me", "-c", "user.email=me@example.com", "commit", "-qm", "first")
    commit = provenance()["git"]
    assert len(commit) == 40
    (tmp_path / "recipe.yaml").write_text("b")
    assert provenance()["git"] == f"{commit}-dirty"


def _git(*words: str) -> None:
    subprocess.run(["git", *words], check=True, capture_output=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
