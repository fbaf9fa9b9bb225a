"""`export_run` and `skyrl export`: every format as a file, with a count of what was left out."""

import json
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.cli import main
from skyrl_gym.errors import ConfigError
from skyrl_gym.evaluate import Run
from skyrl_gym.evaluate.runs import write_json
from skyrl_gym.export import FORMATS, export_run

TOKENS = {"trl", "verl", "skyrl-train", "tinker"}


@pytest.mark.parametrize("to", FORMATS)
def test_excluded_trajectories_are_left_out_and_counted(run: Run, to: str) -> None:
    done = export_run(run, to)
    assert done.path == run.path / "export" / FORMATS[to].file
    assert done.path.stat().st_size > 0
    assert done.excluded == {"sandbox_lost": 1}
    assert done.without_tokens == (0 if to in ("sft", "sharegpt") else 1)
    assert done.trajectories == (12 if to in TOKENS else 13)
    assert [file.name for file in done.path.parent.iterdir()] == [done.path.name]  # no half-written file beside it


@pytest.mark.parametrize("to", FORMATS)
def test_a_run_without_a_judged_trajectory_has_nothing_to_export(tmp_path: Path, make: Any, to: str) -> None:
    run = make.run(tmp_path / "run", [make.lost()])
    with pytest.raises(ConfigError, match=r"nothing to export"):
        export_run(run, to)
    assert not (run.path / "export" / FORMATS[to].file).exists()


@pytest.mark.parametrize("to", FORMATS)
def test_lone_surrogates_and_line_separators_survive_every_format(tmp_path: Path, make: Any, to: str) -> None:
    from skyrl_gym import assistant, user
    from skyrl_gym.rollout import Transition, Turn

    said = "half \ud83d of a pair, \u2028 and \x85 and \x1c"
    turn = Turn(assistant(said), (), Transition((1,), (2, 3), None, fork=True))
    run = make.run(tmp_path / "run", [make.drawn(0, opening=(user(said),), turns=(turn,))])
    done = export_run(run, to)
    if done.path.suffix == ".jsonl":
        (row,) = [json.loads(line) for line in done.path.read_bytes().split(b"\n")[:-1]]
        if "messages" in row:
            assert row["messages"][0]["content"] == said


def test_only_good_trajectories_are_exported_where_asked(run: Run) -> None:
    done = export_run(run, "sft", min_reward=1.0)
    rewards = [json.loads(line)["reward"] for line in done.path.read_text().splitlines()]
    assert set(rewards) == {1.0} and done.below > 0
    assert done.below + done.trajectories == 13


def test_an_unknown_format_is_refused_with_those_that_are_known(run: Run) -> None:
    with pytest.raises(ConfigError, match=r"unknown format 'csv'; known: trl, verl"):
        export_run(run, "csv")


def test_the_tools_come_from_the_environment_of_the_run(run: Run) -> None:
    write_json(run.path / "run.json", {"kind": "eval", "config": {"env_id": "skyrl/memory-v0", "env_kwargs": {}}})
    from skyrl_gym.evaluate import open_run

    done = export_run(open_run(run.path), "sft")
    row = json.loads(done.path.read_text().splitlines()[0])
    assert "answer" in [tool["function"]["name"] for tool in row["tools"]]


def test_parquet_comes_back_as_it_was(run: Run) -> None:
    datasets = pytest.importorskip("datasets")
    pq = pytest.importorskip("pyarrow.parquet")
    from skyrl_gym.trainer.samples import samples_of

    done = export_run(run, "hf")
    table = datasets.Dataset(pq.read_table(done.path))
    held = {(t.task_id, t.sample): t for t in run.trajectories()}
    assert len(table) == 13
    for row in table:
        trajectory = held[row["task_id"], row["sample"]]
        assert row["reward"] == trajectory.reward
        assert json.loads(row["metrics"]) == trajectory.metrics
        assert len(row["messages"]) == 2 + sum(1 + len(turn.observations) for turn in trajectory.turns)
        for sequence, sample in zip(row["sequences"], samples_of(trajectory, 0, 0.0), strict=True):
            assert tuple(sequence["completion_ids"]) == sample.completion_ids
            assert tuple(sequence["mask"]) == sample.mask
            known = sequence["logprobs"]
            assert (None if known is None else tuple(known)) == sample.logprobs


def test_verl_tensors_load_without_pickle(run: Run) -> None:
    np = pytest.importorskip("numpy")
    with np.load(export_run(run, "verl").path, allow_pickle=False) as arrays:
        assert arrays["responses"].shape == arrays["response_mask"].shape
        assert len(arrays["non_tensor/uid"]) == len(arrays["prompts"])


def test_the_command_says_what_it_left_out(run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def skyrl(*words: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main(["export", str(run.path), *words])
        return int(ended.value.code or 0)

    out = tmp_path / "mine.jsonl"
    assert skyrl("--to", "trl", "--out", str(out)) == 0
    said = capsys.readouterr().out
    assert f"12 trajectories: {out}" in said
    assert "excluded: 1 sandbox_lost" in said and "without token ids: 1" in said
    assert out.is_file()
    assert skyrl("--to", "csv") == 2
    assert "unknown format 'csv'" in capsys.readouterr().err
