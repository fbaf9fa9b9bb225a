"""Token formats: every sampled token once and in its place, whatever the episode looked like."""

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyrl_gym.errors import ConfigError
from skyrl_gym.export import Selection, skyrl_train_output, tinker_rows, trl_rows, verifiers_rows, verl_batch
from skyrl_gym.rollout import Trajectory
from skyrl_gym.trainer.samples import samples_of

Whole = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...] | None]  # ids, mask, logprobs of sampled tokens


def expected(trajectories: list[Trajectory]) -> list[Whole]:
    """What the trainer of this package would be given."""
    return sorted(
        ((*s.prompt_ids, *s.completion_ids), (0,) * len(s.prompt_ids) + s.mask, s.logprobs)
        for t in trajectories
        for s in samples_of(t, 0, 0.0)
    )


def whole(prompt: Any, completion: Any, mask: Any, logprobs: Any) -> Whole:
    assert len(completion) == len(mask)
    if logprobs is not None:
        assert len(logprobs) == len(mask)
        assert all(value == 0.0 for value, sampled in zip(logprobs, mask, strict=True) if not sampled)
        logprobs = tuple(value for value, sampled in zip(logprobs, mask, strict=True) if sampled)
    return ((*prompt, *completion), (0,) * len(prompt) + tuple(mask), logprobs)


def from_trl(trajectories: list[Trajectory]) -> list[Whole]:
    rows = list(trl_rows(Selection(trajectories)))
    return [whole(r["prompt_ids"], r["completion_ids"], r["env_mask"], r["logprobs"]) for r in rows]


def from_tinker(trajectories: list[Trajectory]) -> list[Whole]:
    found = []
    for row in tinker_rows(Selection(trajectories)):
        inputs = row["loss_fn_inputs"]
        assert {len(values) for values in inputs.values()} == {len(row["tokens"])}
        ids = [*row["tokens"][:1], *inputs["target_tokens"]]
        assert ids[:-1] == row["tokens"]
        mask = [int(weight) for weight in inputs["weights"]]
        found.append(whole(ids[:1], ids[1:], mask, inputs.get("logprobs")))
    return found


def from_verifiers(trajectories: list[Trajectory]) -> list[Whole]:
    found = []
    for row in verifiers_rows(Selection(trajectories)):
        nodes = row["traces"][0]["nodes"]
        parents = {node["parent"] for node in nodes}
        for leaf in (number for number in range(len(nodes)) if number not in parents):
            path, node = [], leaf
            while node is not None:
                path.insert(0, nodes[node])
                node = nodes[node]["parent"]
            ids = tuple(i for node in path for i in node["token_ids"])
            mask = tuple(int(m) for node in path for m in node["mask"])
            logprobs = tuple(value for node in path for value in node["logprobs"])
            if ids:
                found.append((ids, mask, logprobs if len(logprobs) == sum(mask) else None))
    return found


@settings(deadline=None)
@given(seeds=st.lists(st.integers(0, 10_000), min_size=1, max_size=6, unique=True))
@pytest.mark.parametrize("read", [from_trl, from_tinker, from_verifiers])
def test_rows_hold_the_sequences_of_the_trainer(read: Any, seeds: list[int], make: Any) -> None:
    trajectories = [make.drawn(seed) for seed in seeds]
    assert sorted(read(trajectories), key=repr) == sorted(expected(trajectories), key=repr)


@settings(deadline=None)
@given(seeds=st.lists(st.integers(0, 10_000), min_size=1, max_size=6, unique=True), pad_id=st.integers(0, 2))
def test_a_verl_batch_is_padded_left_and_right_and_nothing_else_changes(
    seeds: list[int], pad_id: int, make: Any
) -> None:
    trajectories = [make.drawn(seed) for seed in seeds]
    tensors, others = verl_batch(Selection(trajectories), pad_id=pad_id)
    width = tensors["prompts"].shape[1]
    found = []
    for row in range(len(others["uid"])):
        attention = tensors["attention_mask"][row]
        assert list(tensors["position_ids"][row][attention == 1]) == list(range(attention.sum()))
        assert set(tensors["input_ids"][row][attention == 0]) <= {pad_id}
        prompt = tensors["prompts"][row][attention[:width] == 1]
        inside = attention[width:] == 1
        assert list(inside) == sorted(inside, reverse=True)
        assert not tensors["response_mask"][row][~inside].any()
        (place,) = [int(i) for i in tensors["rm_scores"][row].nonzero()[0]] or [int(inside.sum()) - 1]
        assert place == inside.sum() - 1
        logprobs = tensors["rollout_log_probs"][row][inside] if "rollout_log_probs" in tensors else None
        found.append(whole(prompt, tensors["responses"][row][inside], tensors["response_mask"][row][inside], logprobs))
    all_known = all(s[2] is not None for s in expected(trajectories))
    assert ("rollout_log_probs" in tensors) == all_known
    without = [(ids, mask) for ids, mask, _ in found]
    assert sorted(without) == sorted((ids, mask) for ids, mask, _ in expected(trajectories))


@settings(deadline=None)
@given(seeds=st.lists(st.integers(0, 10_000), min_size=1, max_size=6, unique=True))
def test_a_skyrl_train_output_rewards_a_trajectory_once(seeds: list[int], make: Any) -> None:
    trajectories = [make.drawn(seed) for seed in seeds]
    out = skyrl_train_output(Selection(trajectories))
    size = len(out["response_ids"])
    lists = [value for value in out.values() if isinstance(value, list)]
    assert {len(value) for value in lists} == {size}
    assert sum(out["is_last_step"]) == len(trajectories) and out["is_last_step"][-1] is True
    rewards: dict[str, float] = {}
    for row in range(size):
        assert len(out["rewards"][row]) == len(out["loss_masks"][row]) == len(out["response_ids"][row])
        assert out["is_last_step"][row] or not any(out["rewards"][row])
        rewards[repr(out["trajectory_ids"][row])] = out["rewards"][row][-1]
    assert sorted(rewards.values()) == sorted(t.reward or 0.0 for t in trajectories)
    names = [repr(identity) for identity in out["trajectory_ids"]]
    assert len([1 for a, b in pairwise(names) if a != b]) == len(set(names)) - 1  # contiguous


def test_a_skyrl_train_output_has_the_published_fields_only(make: Any) -> None:
    """Those of GeneratorOutput in skyrl/train/generators/base.py, August 2026."""
    published = {
        "prompt_token_ids", "response_ids", "rewards", "loss_masks", "stop_reasons", "rollout_metrics",
        "rollout_logprobs", "trajectory_ids", "trajectory_generation_times", "trajectory_time_splits",
        "rollout_expert_indices", "is_last_step", "env_metrics", "pixel_values", "image_grid_thw",
    }  # fmt: skip
    out = skyrl_train_output(Selection([make.drawn(1)]))
    assert set(out) <= published
    assert {"prompt_token_ids", "response_ids", "rewards", "loss_masks", "rollout_logprobs"} <= set(out)
    assert set(out["stop_reasons"]) <= {"stop", "length"}
    assert set(out["trajectory_ids"][0]) == {"instance_id", "repetition_id"}


def test_missing_logprobs_are_never_a_number(make: Any) -> None:
    seed = next(s for s in range(100) if any(x[2] is None for x in expected([make.drawn(s)])))
    unknown = [make.drawn(seed)]
    assert all(row["logprobs"] is None for row in trl_rows(Selection(unknown)))
    assert all("logprobs" not in row["loss_fn_inputs"] for row in tinker_rows(Selection(unknown)))
    assert "rollout_log_probs" not in verl_batch(Selection(unknown))[0]
    assert skyrl_train_output(Selection(unknown))["rollout_logprobs"] is None
    nodes = next(iter(verifiers_rows(Selection(unknown))))["traces"][0]["nodes"]
    assert all(node["logprobs"] == [] for node in nodes)
    selection = Selection(unknown)
    assert len(list(selection.sequences())) == selection.without_logprobs > 0


def test_an_excluded_trajectory_changes_no_advantage(make: Any) -> None:
    group = {"group": "g", "task_id": "g", "task_hash": "g"}
    judged = [make.drawn(seed, sample=seed, reward=reward, **group) for seed, reward in enumerate((0.0, 1.0, 0.5))]
    alone = list(tinker_rows(Selection(judged), advantage="mean"))
    beside = list(tinker_rows(Selection([make.lost(**group), *judged]), advantage="mean"))
    assert alone == beside
    by_sample = {row["sample"]: max(row["loss_fn_inputs"]["advantages"], key=abs) for row in alone}
    assert by_sample == {0: -0.5, 1: 0.5, 2: 0.0}


def test_a_gap_in_the_tokens_leaves_the_whole_trajectory_out(make: Any) -> None:
    from dataclasses import replace

    rng = random.Random(0)
    seed = next(s for s in range(100) if len(make.drawn(s).turns) > 2)
    trajectory = make.drawn(seed)
    hole = rng.randrange(1, len(trajectory.turns))
    turns = [replace(t, transition=None) if i == hole else t for i, t in enumerate(trajectory.turns)]
    selection = Selection([replace(trajectory, turns=tuple(turns))])
    assert list(selection.sequences()) == []
    assert selection.without_tokens == 1 and selection.written == 0


def test_nothing_to_pad_is_an_error(make: Any) -> None:
    for make_batch in (verl_batch, skyrl_train_output):
        with pytest.raises(ConfigError, match="no judged trajectory has token ids"):
            make_batch(Selection([make.lost(), make.without_ids()]))
