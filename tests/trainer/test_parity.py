"""One step of ours against one step of TRL's own trainer, and against itself cut differently."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from skyrl_gym import StopReason
from skyrl_gym.errors import ConfigError, RunAborted
from skyrl_gym.rollout import RolloutRequest

pytestmark = pytest.mark.filterwarnings("default")
LOSSES = ["grpo", "dapo", "dr_grpo", "cispo"]


def vanilla_step(folder: Path, tools: Any, loss_type: str) -> dict[str, torch.Tensor]:
    """TRL's GRPOTrainer on the same token ids, masks and rewards, handed in through its `rollout_func`."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from skyrl_gym.chat.testing import tiny_tokenizer

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        found: dict[str, list[Any]] = {name: [] for name in ("prompt_ids", "completion_ids", "env_mask", "score")}
        for position, prompt in enumerate(prompts):
            task = tools.TASKS.find(prompt)
            trajectory = tools.recorded(RolloutRequest("test", task, task.id, position % tools.GROUP))
            first, second = (turn.transition for turn in trajectory.turns)
            found["prompt_ids"].append(list(first.input_ids))
            found["completion_ids"].append([*first.sampled_ids, *second.input_ids, *second.sampled_ids])
            found["env_mask"].append(
                [1] * len(first.sampled_ids) + [0] * len(second.input_ids) + [1] * len(second.sampled_ids)
            )
            found["score"].append(trajectory.reward)
        return {**found, "logprobs": None}

    def reward(completions: list[Any], score: list[float], **_: Any) -> list[float]:
        return score

    config = GRPOConfig(
        output_dir=str(folder), per_device_train_batch_size=8, gradient_accumulation_steps=2, num_generations=4,
        max_steps=1, learning_rate=1.0, optim="sgd", max_grad_norm=1e9, lr_scheduler_type="constant", bf16=False,
        use_cpu=True, report_to="none", save_strategy="no", gradient_checkpointing=False, disable_tqdm=True,
        max_completion_length=32, temperature=1.0, seed=0, loss_type=loss_type,
    )  # fmt: skip
    rows = Dataset.from_dict({"prompt": [task.id for task in tools.TASKS]})
    trainer = GRPOTrainer(
        model=tools.tiny_model(), args=config, train_dataset=rows, reward_funcs=reward,
        processing_class=tiny_tokenizer(), rollout_func=rollout_func,
    )  # fmt: skip
    trainer.train()
    return {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}


@pytest.mark.parametrize("loss_type", LOSSES)
def test_one_step_equals_trls_own(tmp_path: Path, tools: Any, loss_type: str) -> None:
    start = tools.tiny_model().state_dict()
    theirs = vanilla_step(tmp_path / "trl", tools, loss_type)
    ours = tools.one_step(tmp_path / "ours", tools.Recorded(), loss_type=loss_type)
    moved = tools.distance(start, theirs)
    assert moved > 1e-3
    assert tools.distance(ours, theirs) < 1e-5 * max(1.0, moved)


@pytest.mark.parametrize("loss_type", LOSSES)
@pytest.mark.parametrize("forks", [False, True])
def test_the_step_does_not_depend_on_how_rows_are_cut(tmp_path: Path, tools: Any, loss_type: str, forks: bool) -> None:
    steps = [
        tools.one_step(tmp_path / str(rows), tools.Recorded(forks=forks), rows=rows, loss_type=loss_type)
        for rows in (16, 4, 2)
    ]
    assert tools.distance(steps[0], steps[1]) < 1e-5
    assert tools.distance(steps[0], steps[2]) < 1e-5


def test_merged_and_unmerged_turns_give_the_same_step(tmp_path: Path, tools: Any) -> None:
    merged = tools.one_step(tmp_path / "a", tools.Recorded(), loss_type="dapo")
    apart = tools.one_step(tmp_path / "b", tools.Recorded(forks=True), loss_type="dapo")
    assert tools.distance(merged, apart) < 1e-5
    assert tools.distance(merged, tools.tiny_model().state_dict()) > 1e-3


def test_excluded_trajectories_leave_no_trace(tmp_path: Path, tools: Any) -> None:
    """With one of a group excluded, the step is that of the rest: no row, no baseline."""
    some = tools.one_step(tmp_path / "a", tools.Recorded(excluded=frozenset({0, 5})))
    everything = tools.one_step(tmp_path / "b", tools.Recorded())
    assert tools.distance(some, everything) > 1e-4
    again = tools.one_step(tmp_path / "c", tools.Recorded(excluded=frozenset({0, 5})), rows=4)
    assert tools.distance(some, again) < 1e-5


@pytest.mark.parametrize("loss_type", LOSSES)
def test_the_step_does_not_depend_on_the_token_budget_of_a_forward_pass(
    tmp_path: Path, tools: Any, loss_type: str
) -> None:
    whole = tools.one_step(tmp_path / "a", tools.Recorded(forks=True), rows=16, loss_type=loss_type)
    for budget in (1, 60, 100_000):
        cut = tools.one_step(
            tmp_path / str(budget), tools.Recorded(forks=True), rows=16, loss_type=loss_type, max_forward_tokens=budget
        )
        assert tools.distance(whole, cut) < 1e-5


def test_without_a_signal_the_optimizer_stands_still(tmp_path: Path, tools: Any) -> None:
    source = tools.Recorded(change=lambda number, t: replace(t, reward=1.0))
    assert tools.distance(tools.one_step(tmp_path, source), tools.tiny_model().state_dict()) == 0.0


def test_batches_without_a_valid_trajectory_end_the_run(tmp_path: Path, tools: Any) -> None:
    with pytest.raises(RunAborted, match=r"1 batches in a row had no trajectory.*none is valid .sandbox_lost"):
        tools.one_step(tmp_path, tools.Recorded(excluded=frozenset(range(16))), max_empty_batches=1)


def test_a_batch_of_which_every_token_is_masked_ends_the_run_and_says_why(tmp_path: Path, tools: Any) -> None:
    with pytest.raises(RunAborted, match=r"masked by their endings.*done"):
        tools.one_step(tmp_path, tools.Recorded(), max_empty_batches=1, mask_endings=["done"])


def test_a_source_that_gives_nothing_ends_the_run(tmp_path: Path, tools: Any) -> None:
    class Empty(tools.Recorded):  # type: ignore[misc]
        def draw(self, groups: int) -> Any:
            return []

    with pytest.raises(RunAborted, match="gave no trajectory at all"):
        tools.one_step(tmp_path, Empty())


def _overlong(number: int, trajectory: Any) -> Any:
    return replace(trajectory, stop_reason=StopReason.CONTEXT_FULL) if number % 4 == 1 else trajectory


def test_a_masked_ending_is_in_the_baseline_but_not_in_the_loss(tmp_path: Path, tools: Any) -> None:
    """Masked: the others' advantages stay what they were. Excluded: they change."""
    masked = tools.one_step(tmp_path / "a", tools.Recorded(change=_overlong), mask_endings=["context_full"])
    trained = tools.one_step(tmp_path / "b", tools.Recorded(change=_overlong))
    excluded = tools.one_step(tmp_path / "c", tools.Recorded(excluded=frozenset({1, 5, 9, 13})))
    assert tools.distance(masked, trained) > 1e-4
    assert tools.distance(masked, excluded) > 1e-4


def _flat_first_groups(number: int, trajectory: Any) -> Any:
    return replace(trajectory, reward=1.0 if number < 8 else float(number % 4))


def test_groups_without_a_signal_are_kept_or_left_out_of_the_count_of_tokens(tmp_path: Path, tools: Any) -> None:
    kept, dropped = (tools.Recorded(change=_flat_first_groups) for _ in range(2))
    a = tools.one_step(tmp_path / "a", kept)
    b = tools.one_step(tmp_path / "b", dropped, drop_zero_variance=True)
    start = tools.tiny_model().state_dict()
    assert tools.distance(b, start) > 1.2 * tools.distance(a, start)  # the same gradient over fewer tokens


def test_groups_without_a_signal_are_drawn_anew_until_the_batch_is_full(tmp_path: Path, tools: Any) -> None:
    source = tools.Recorded(change=_flat_first_groups)
    tools.one_step(tmp_path, source, refill_rounds=3)
    assert source.drawn == [4, 2]
    assert (source.log["groups"], source.log["groups_with_signal"]) == (6, 4)


def test_drawing_anew_has_a_bound(tmp_path: Path, tools: Any) -> None:
    source = tools.Recorded(change=lambda number, t: replace(t, reward=1.0))
    tools.one_step(tmp_path, source, refill_rounds=2)
    assert source.drawn == [4, 4, 4]


def test_some_trajectories_of_a_step_are_put_into_a_table(tmp_path: Path, tools: Any) -> None:
    import pyarrow.parquet

    source = tools.Recorded(excluded=frozenset({0}))
    tools.one_step(tmp_path, source, log_completions=True, log_trajectories=3, num_completions_to_print=0, max_steps=2)
    later = pyarrow.parquet.read_table(tmp_path / "completions" / "completions_00002.parquet").to_pylist()
    assert [row["ending"] for row in later] == ["done"] * 3
    table = pyarrow.parquet.read_table(tmp_path / "completions" / "completions_00001.parquet").to_pylist()
    assert [row["ending"] for row in table] == ["sandbox_lost", "done", "done"]
    assert [row["env"] for row in table] == ["test"] * 3
    assert table[1]["completion"] == "[assistant]\na\n\n[assistant]\nb"


def _with_turn_rewards(number: int, trajectory: Any) -> Any:
    first, last = trajectory.turns
    return replace(trajectory, turns=(replace(first, reward=float(number % 3)), last))


def test_credit_by_turn_changes_the_step_and_without_turn_rewards_does_not(tmp_path: Path, tools: Any) -> None:
    whole = tools.one_step(tmp_path / "a", tools.Recorded())
    by_turn = tools.one_step(tmp_path / "b", tools.Recorded(), turn_discount=1.0)
    assert tools.distance(whole, by_turn) < 1e-6
    rewarded = tools.one_step(tmp_path / "c", tools.Recorded(change=_with_turn_rewards), turn_discount=0.9)
    again = tools.one_step(tmp_path / "d", tools.Recorded(change=_with_turn_rewards, forks=True), turn_discount=0.9)
    assert tools.distance(whole, rewarded) > 1e-4
    assert tools.distance(rewarded, again) < 1e-5  # merged and apart


def _with_logprobs(number: int, trajectory: Any) -> Any:
    def given(turn: Any) -> Any:
        step = turn.transition
        return replace(turn, transition=replace(step, logprobs=tuple(-3.0 for _ in step.sampled_ids)))

    return replace(trajectory, turns=tuple(map(given, trajectory.turns)))


@pytest.mark.parametrize("kind", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_importance_correction_needs_logprobs(tmp_path: Path, tools: Any, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"'{kind}' needs the policy's logprobs"):
        tools.one_step(tmp_path, tools.Recorded(), importance_correction=kind)


@pytest.mark.parametrize("loss_type", LOSSES)
def test_importance_weights_differ_from_1_when_the_sampler_does(tmp_path: Path, tools: Any, loss_type: str) -> None:
    source = tools.Recorded(change=_with_logprobs)
    corrected = tools.one_step(tmp_path / "a", source, importance_correction="token_truncate", loss_type=loss_type)
    plain = tools.one_step(tmp_path / "b", tools.Recorded(change=_with_logprobs), loss_type=loss_type)
    assert tools.distance(corrected, plain) > 1e-5
    assert source.log["sampling/kl"] > 1.0
    assert source.log["sampling/ratio_max"] > 10.0


def test_the_mismatch_is_told_without_a_correction_and_is_none_where_the_sampler_is_the_model(
    tmp_path: Path, tools: Any
) -> None:
    model = tools.tiny_model()

    def exact(number: int, trajectory: Any) -> Any:
        prompts = list(trajectory.prompts())
        turns = []
        for turn, prompt in zip(trajectory.turns, prompts, strict=True):
            ids = torch.tensor([[*prompt, *turn.transition.sampled_ids]])
            with torch.no_grad():
                logprobs = model(ids).logits[0].log_softmax(-1)
            found = [float(logprobs[i - 1, ids[0, i]]) for i in range(len(prompt), ids.shape[1])]
            turns.append(replace(turn, transition=replace(turn.transition, logprobs=tuple(found))))
        return replace(trajectory, turns=tuple(turns))

    source = tools.Recorded(change=exact)
    tools.one_step(tmp_path, source)
    assert source.log["sampling/kl"] == pytest.approx(0, abs=1e-6)
    assert source.log["sampling/ratio_max"] == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"num_iterations": 2}, "num_iterations is 1"),
        ({"turn_discount": 1.5}, "turn_discount is from 0 to 1"),
        ({"mask_endings": ["overlong"]}, "'overlong' is no ending that is graded; those are done"),
        ({"mask_endings": ["sandbox_lost"]}, "no ending that is graded"),
        ({"mask_truncated_completions": True}, "here it is mask_endings"),
        ({"max_steps": -1}, "max_steps is 1 or more"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, tools: Any, settings: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        tools.one_step(tmp_path, tools.Recorded(), **settings)


PROGRAM = """
import importlib.util, json, pathlib, sys, warnings
warnings.simplefilter("ignore")
spec = importlib.util.spec_from_file_location("shared", sys.argv[1])
shared = importlib.util.module_from_spec(spec); spec.loader.exec_module(shared)
shared.torch.set_num_threads(1)
change = getattr(shared, sys.argv[4], lambda number, trajectory: trajectory)
source = shared.Recorded(forks=True, excluded=frozenset({1, 3, 5, 6}), change=change)  # far more of the second process
weights = shared.one_step(pathlib.Path(sys.argv[2]), source, rows=4, loss_type=sys.argv[3])
rank = shared.os.environ["RANK"]
told = {"weights": {n: float(w.double().sum()) for n, w in weights.items()}, "log": source.log}
pathlib.Path(sys.argv[2], f"told.{rank}.json").write_text(json.dumps(told))
shared.torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("loss_type", "change", "shared"),
    [("dapo", "", (0.2, 1.0)), ("grpo", "", (0.2, 1.0)), ("dapo", "odd_ones_begin_alone", (0.05, 0.2))],
    ids=["dapo", "grpo", "only the first shares prefixes"],
)
def test_two_processes_take_the_same_step_as_one(
    tmp_path: Path, tools: Any, loss_type: str, change: str, shared: tuple[float, float]
) -> None:
    script = tmp_path / "step.py"
    script.write_text(PROGRAM)
    arguments = [str(script), str(Path(__file__).parent / "conftest.py"), str(tmp_path), loss_type, change]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run([*launch, *arguments], capture_output=True, text=True, env=environment, timeout=110)
    assert done.returncode == 0, done.stderr[-3_000:]
    two = [json.loads((tmp_path / f"told.{rank}.json").read_text()) for rank in (0, 1)]
    least, most = shared
    assert all(least < told["log"]["shared_tokens"] < most for told in two), "of both together"
    assert two[0]["log"]["shared_tokens"] == two[1]["log"]["shared_tokens"]
    change_one = getattr(tools, change, lambda number, trajectory: trajectory)
    source = tools.Recorded(forks=True, excluded=frozenset({1, 3, 5, 6}), change=change_one)
    one = tools.one_step(tmp_path / "one", source, rows=8, loss_type=loss_type, share_prefixes=False)
    for name, total in two[0]["weights"].items():
        assert total == pytest.approx(float(one[name].double().sum()), abs=2e-4), name
