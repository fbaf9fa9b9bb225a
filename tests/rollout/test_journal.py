"""The journal: append-only, torn at any byte, read back whole."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyrl_gym.errors import ConfigError, StopReason
from skyrl_gym.messages import assistant, user
from skyrl_gym.rollout import ErrorInfo, Journal, Trajectory, Transition, Turn, read_journal

NASTY = "a\u2028b\u0085c\x1cd\r\ne\n\ud800\U0001f642"


def trajectory(sample: int = 0, text: str = NASTY) -> Trajectory:
    turn = Turn(
        assistant(text),
        (user(text),),
        Transition((1, 2), (3,), (-0.5,), 7, fork=True),
        seconds={"policy": 0.1},
    )
    return Trajectory(
        "e", "t", "h", "g", sample, StopReason.DONE, (user(text),), (turn,), 0.5, {"f1": 1.0},
        ErrorInfo("E", text), 1, "p", {"run": 1.0}, {"patch": text},
    )  # fmt: skip


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "j.jsonl"
    with Journal(path) as journal:
        for i in range(3):
            journal.append(trajectory(i))
    assert list(read_journal(path)) == [trajectory(i) for i in range(3)]


@settings(max_examples=40, deadline=None)
@given(st.text(), st.data())
def test_a_torn_last_line_loses_only_itself(text: str, data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "j.jsonl"
        with Journal(path) as journal:
            journal.append(trajectory(0, text))
            whole = path.stat().st_size
            journal.append(trajectory(1, text))
        os.truncate(path, data.draw(st.integers(whole, path.stat().st_size - 1)))
        assert [t.sample for t in read_journal(path)] == [0]
        with Journal(path) as journal:
            journal.append(trajectory(2, text))
        assert [t.sample for t in read_journal(path)] == [0, 2]


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    with Journal(path) as journal:
        journal.append(trajectory())
    path.write_bytes(b"{}\n" + path.read_bytes())
    with pytest.raises(ConfigError, match="line 1: not a trajectory"):
        list(read_journal(path))
    with pytest.raises(ConfigError, match="no such journal"):
        list(read_journal(tmp_path / "none.jsonl"))


def test_a_process_killed_while_writing_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    program = (
        "import sys; from skyrl_gym.errors import StopReason; from skyrl_gym.rollout import Journal, Trajectory\n"
        "journal = Journal(sys.argv[1])\n"
        "for i in range(10**6):\n"
        "    journal.append(Trajectory('e', 't', 'h', 'g', i, StopReason.DONE))\n"
        "    print(i, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    seen = [int(process.stdout.readline()) for _ in range(50)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    found = [t.sample for t in read_journal(path)]
    assert found == list(range(len(found)))
    assert len(found) > seen[-1]


@pytest.mark.parametrize("fsync", [True, False])
def test_the_disk_has_a_line_before_append_returns_unless_that_is_left_to_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: bool
) -> None:
    on_disk, wait_for_disk = [0], os.fsync

    def noted(file: int) -> None:
        wait_for_disk(file)
        on_disk.append(os.fstat(file).st_size)

    monkeypatch.setattr(os, "fsync", noted)
    with Journal(tmp_path / "t.jsonl", fsync=fsync) as journal:
        for sample in range(2):
            journal.append(trajectory(sample))
            whole = journal.path.stat().st_size
            assert on_disk[-1] == (whole if fsync else 0)
            assert len(list(read_journal(journal.path))) == sample + 1


def test_a_journal_from_before_there_were_artifacts_is_read(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    older = {name: value for name, value in trajectory(text="x").to_json().items() if name != "artifacts"}
    path.write_text(json.dumps(older) + "\n")
    assert list(read_journal(path)) == [replace(trajectory(text="x"), artifacts={})]


def test_prompts_are_rebuilt_from_what_is_new() -> None:
    turns = (
        Turn(assistant("a"), (), Transition((1, 2), (3, 4), None, fork=True)),
        Turn(assistant("b"), (), Transition((5,), (6,), None)),
        Turn(assistant("c"), (), Transition((9,), (8,), None, fork=True)),
    )
    found = Trajectory("e", "t", "h", "g", 0, StopReason.DONE, turns=turns)
    assert list(found.prompts()) == [(1, 2), (1, 2, 3, 4, 5), (9,)]
    assert found.sampled_tokens == 4
