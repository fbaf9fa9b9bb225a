"""Two run folders, compared task by task, or refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.errors import ConfigError
from skyrl_gym.evaluate import open_run
from skyrl_gym.evaluate.compare import Comparison, compare
from skyrl_gym.evaluate.runs import write_json
from skyrl_gym.rollout import Journal, Trajectory

Make = Callable[..., Trajectory]
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, make: Make) -> Write:
    """Writes a run folder of rewards by task."""

    def write(name: str, rewards: dict[str, list[float | None]], kind: str = "eval", **kwargs: Any) -> Path:
        folder = tmp_path / name
        samples = max(len(of_task) for of_task in rewards.values())
        env_id = kwargs.pop("env_id", "guess-v0")
        config = {"env_id": env_id, "env_kwargs": kwargs, "samples": samples}
        write_json(folder / "run.json", {"kind": kind, "config": config})
        with Journal(folder / "trajectories.jsonl") as journal:
            for task, of_task in rewards.items():
                for sample, reward in enumerate(of_task):
                    journal.append(make(reward, task, sample, policy=name, env_id=env_id))
        return folder

    return write


def found(before: Path, after: Path, **settings: Any) -> Comparison:
    return compare(open_run(before), open_run(after), **settings)


def test_gains_losses_and_what_stays(write: Write) -> None:
    old = {"a": [0.0], "b": [1.0], "c": [1.0], "d": [0.0], "e": [0.0]}
    new = {"a": [1.0], "b": [0.0], "c": [1.0], "d": [0.0], "e": [1.0]}
    comparison = found(write("old", old), write("new", new))
    assert [pair.after.task_id for pair in comparison.gained] == ["task-a", "task-e"]
    assert [pair.after.task_id for pair in comparison.lost] == ["task-b"]
    assert comparison.change.value == pytest.approx(0.2) and comparison.change.tasks == 5
    assert comparison.p_solved == comparison.p_reward == 1.0
    assert comparison.left_out == 0


def test_a_task_is_solved_by_more_than_half_of_its_trajectories(write: Write) -> None:
    comparison = found(
        write("old", {"a": [1.0, 0.0, 0.0, 0.0], "b": [1.0, 1.0, 0.0, 0.0]}),
        write("new", {"a": [1.0, 1.0, 1.0, 0.0], "b": [1.0, 0.0, 0.0, 0.0]}),
    )
    assert len(comparison.gained) == 1 and not comparison.lost


def test_a_clear_improvement_is_sure_and_a_small_one_is_not(write: Write) -> None:
    old = {str(i): [float(i % 4 == 0)] for i in range(40)}
    better = {str(i): [float(i % 4 != 3)] for i in range(40)}
    clear = found(write("old", old), write("better", better))
    assert clear.p_reward < 1e-4 and clear.p_solved < 1e-4
    assert clear.change.low is not None and clear.change.low > 0.3
    hardly = found(write("old2", old), write("hardly", {**old, "1": [1.0]}))
    assert hardly.p_reward == 1.0
    assert hardly.detectable is not None and hardly.detectable > (hardly.change.value or 0)


def test_what_was_not_judged_is_left_out_and_counted(write: Write) -> None:
    old = write("old", {"a": [1.0, None], "b": [None, None], "c": [0.0, 0.0]})
    new = write("new", {"a": [0.0, 0.0], "b": [1.0, 1.0], "c": [None, None]})
    comparison = found(old, new)
    assert set(comparison.pairs) == {"hash-a"} and comparison.left_out == 2
    assert comparison.change.value == -1.0
    with pytest.raises(ConfigError, match=r"no task of which both have a judged .*judged are 0 and 1"):
        found(write("none", {"a": [None]}), write("one", {"a": [1.0]}))


def test_other_environments_are_refused(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"old is of guess-v0, .*new of other-v0"):
        found(write("old", {"a": [1.0]}), write("new", {"a": [1.0]}, env_id="other-v0"), common=True)


def test_other_settings_are_refused_unless_asked_for(write: Write) -> None:
    old, new = (
        write("old", {"a": [1.0]}, words=5, dialect="hermes"),
        write("new", {"a": [0.0]}, words=6, dialect="llama"),
    )
    with pytest.raises(ConfigError, match=r"other settings of guess-v0: words \(5, 6\); --common"):
        found(old, new)
    assert found(old, new, common=True).change.value == -1.0


def test_other_tasks_are_refused_unless_asked_for(write: Write) -> None:
    old, new = write("old", {"a": [1.0], "b": [1.0]}), write("new", {"b": [0.0], "c": [0.0], "d": [0.0]})
    with pytest.raises(ConfigError, match=r"old has 2 tasks and .*new 3, 1 in common"):
        found(old, new)
    comparison = found(old, new, common=True)
    assert (len(comparison.pairs), comparison.left_out, comparison.change.value) == (1, 3, -1.0)


def test_a_training_is_refused_and_its_evaluations_named(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"train is no evaluation.*eval/before"):
        found(write("train", {"a": [1.0]}, "train"), write("new", {"a": [1.0]}))
