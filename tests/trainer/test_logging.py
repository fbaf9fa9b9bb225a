"""What a step was like reaches those who keep it, under the names of docs/training.md; telemetry is sent to nobody."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym import StopReason, assistant
from skyrl_gym.messages import ToolCall

pytestmark = pytest.mark.filterwarnings("default")
NAMES = (
    "reward", "reward_std", "turns", "tokens", "excluded", "stop/done", "stop/max_turns", "stop/sandbox_lost",
    "tools/calls", "tools/errors", "tools/invalid", "tool/look", "staleness/mean", "staleness/max", "sampling/kl",
    "sampling/ratio_max", "env/a/reward", "env/b/reward", "env/a/share", "seconds/rollout", "loss", "grad_norm",
)  # fmt: skip


def told(number: int, trajectory: Any) -> Any:
    """Two environments, several endings, a tool that fails once in three calls, logprobs."""
    turns = [replace(turn, transition=_with_logprobs(turn.transition)) for turn in trajectory.turns]
    calls = (ToolCall("look", {}), ToolCall("look", {}), ToolCall("look", {}))
    turns[0] = replace(turns[0], message=assistant("a", *calls), errors=1)
    endings = {0: StopReason.MAX_TURNS, 1: StopReason.SANDBOX_LOST}
    reason = endings.get(number % 16, StopReason.DONE)
    reward = None if reason is StopReason.SANDBOX_LOST else trajectory.reward
    return replace(trajectory, turns=tuple(turns), stop_reason=reason, reward=reward, env_id="ab"[number // 4 % 2])


def _with_logprobs(step: Any) -> Any:
    return replace(step, logprobs=tuple(-3.0 for _ in step.sampled_ids))


def train(folder: Path, tools: Any, **settings: Any) -> dict[str, float]:
    source = tools.Recorded(change=told)
    tools.one_step(
        folder, source, run_name="r", max_steps=2, log_completions=True, log_trajectories=3,
        num_completions_to_print=0, **settings,
    )  # fmt: skip
    found: dict[str, float] = source.log
    return found


def test_each_number_has_its_documented_name(tmp_path: Path, tools: Any) -> None:
    log = train(tmp_path, tools)
    assert [name for name in NAMES if name not in log] == []
    assert log["tools/calls"] == 3
    assert log["tools/errors"] == pytest.approx(1 / 3)
    assert log["stop/max_turns"] == log["stop/sandbox_lost"] == 1 / 16
    assert log["excluded"] == 1
    text = (Path(__file__).parents[2] / "docs/training.md").read_text()
    for name in ("tools/errors", "tools/invalid", "sampling/kl", "sampling/ratio_max", "staleness/mean", "env/<id>/"):
        assert f"`{name}" in text


def test_tensorboard_keeps_the_numbers(tmp_path: Path, tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    log = train(tmp_path / "out", tools, report_to="tensorboard")
    board = EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    assert [name for name in NAMES if f"train/{name}" not in board.Tags()["scalars"]] == []
    points = board.Scalars("train/tools/errors")
    assert [point.step for point in points] == [1, 2]
    assert points[-1].value == pytest.approx(log["tools/errors"])


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("TRACKIO_PROJECT", "p")
    return tmp_path


@pytest.mark.slow
def test_wandb_keeps_the_numbers_and_a_table_of_trajectories(tmp_path: Path, tools: Any, offline: Path) -> None:
    wandb = pytest.importorskip("wandb")
    train(tmp_path / "out", tools, report_to="wandb")
    summary = dict(wandb.run.summary)
    assert [name for name in NAMES if f"train/{name}" not in summary] == []
    assert summary["completions"]["nrows"] == 3
    wandb.finish()
    (table,) = sorted(tmp_path.glob("wandb/offline-run-*/files/media/table/completions_*.json"))[-1:]
    columns = json.loads(table.read_text())["columns"]
    assert {"step", "prompt", "completion", "reward", "advantage", "ending", "env"} <= set(columns)


@pytest.mark.slow
def test_trackio_keeps_the_numbers_and_a_table_of_trajectories(tmp_path: Path, tools: Any, offline: Path) -> None:
    pytest.importorskip("trackio")
    train(tmp_path / "out", tools, report_to="trackio", project="p")
    from trackio.sqlite_storage import SQLiteStorage

    (name,) = SQLiteStorage.get_runs("p")
    rows = SQLiteStorage.get_logs("p", name)
    held = {key for row in rows for key in row}
    assert [name for name in NAMES if f"train/{name}" not in held] == []
    assert "completions" in held


def test_telemetry_is_sent_to_nobody(tmp_path: Path, tools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import trl.trainer.base_trainer

    sent: list[Any] = []
    monkeypatch.setattr(trl.trainer.base_trainer, "send_telemetry", lambda *told, **more: sent.append(told))
    tools.one_step(tmp_path, tools.Recorded())
    assert sent == []
