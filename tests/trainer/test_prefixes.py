"""What sequences have in common is read once: the same log-probabilities, gradients and steps as one by one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skyrl_gym.trainer.prefixes import MOST_NODES, Tree, can_share, pack_shared
from skyrl_gym.trainer.samples import Sample

pytestmark = pytest.mark.filterwarnings("default")
SIZES = {
    "vocab_size": 400, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip


def sample(prompt: tuple[int, ...], completion: tuple[int, ...], mask: tuple[int, ...]) -> Sample:
    count = sum(mask)
    return Sample(prompt, completion, mask, None, (0,) * count, (0,) * count, (1.0,) * count, "t", 0)


@st.composite
def samples(draw: Any) -> Sample:
    few = st.integers(1, 3)  # of few tokens, so that much is alike
    prompt = tuple(draw(st.lists(few, min_size=1, max_size=4)))
    completion = tuple(draw(st.lists(few, min_size=1, max_size=5)))
    mask = tuple(draw(st.lists(st.integers(0, 1), min_size=len(completion), max_size=len(completion))))
    return sample(prompt, completion, mask)


@given(st.lists(samples(), min_size=1, max_size=6))
def test_every_sample_lies_in_the_tree_token_for_token(given_samples: list[Sample]) -> None:
    tree = Tree.of(given_samples)
    tensors = tree.tensors(torch.device("cpu"))
    sees = tensors["attention_mask"][0, 0]
    for one, places in zip(given_samples, tree.places, strict=True):
        whole = [*one.prompt_ids, *one.completion_ids]
        for offset, (place, bit) in enumerate(zip(places, one.mask, strict=True)):
            before = len(one.prompt_ids) + offset
            path = sees[place].nonzero()[:, 0].tolist()
            assert [tree.ids[i] for i in path] == whole[:before]
            assert [tree.positions[i] for i in path] == list(range(before))
            assert tree.labels[place] == (whole[before] if bit else -100)
    assert len(tree.ids) <= sum(one.tokens - 1 for one in given_samples)
    assert Tree.of([*given_samples, *given_samples]).ids == tree.ids


@given(st.lists(samples(), max_size=12), st.integers(1, 5), st.none() | st.integers(1, 30))
def test_packing_keeps_every_sample_within_the_bounds(given_samples: list[Sample], rows: int, tokens: Any) -> None:
    chunks, saved = pack_shared(given_samples, rows, tokens)
    whole = sum(one.tokens - 1 for one in given_samples)
    assert whole * (1 - saved) == pytest.approx(len(Tree.of(given_samples).ids)), "what the tree of all saves"
    assert sorted(id(one) for chunk in chunks for one in chunk) == sorted(map(id, given_samples))
    for chunk in chunks:
        assert len(chunk) <= rows
        assert len(chunk) == 1 or len(Tree.of(chunk).ids) <= min(tokens or MOST_NODES, MOST_NODES)


def test_a_group_that_shares_its_prompt_reads_it_once() -> None:
    group = [sample((1,) * 100, (2, number), (1, 1)) for number in range(3, 11)]
    assert len(Tree.of(group).ids) == 100 + 8  # the token before the branch stands there once for each continuation
    chunks, saved = pack_shared(group, 8)
    assert len(chunks) == 1 and saved == pytest.approx(1 - 108 / 808)
    apart = [sample((number,) * 100, (2,), (1,)) for number in range(3, 11)]
    chunks, saved = pack_shared(apart, 8)
    assert len(chunks) == 8 and saved == 0.0


def architecture(name: str) -> Any:
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    torch.manual_seed(0)
    extra = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16} if "moe" in name else {}
    if name == "phi3":
        extra = {"rope_scaling": None}
    if name == "mistral":
        extra = {"sliding_window": None}
    config = CONFIG_MAPPING[name](**SIZES, **extra)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()


FORKS = [
    sample((5, 6, 7, 8), (9, 10, 11, 12), (1, 1, 0, 1)),
    sample((5, 6, 7, 8), (9, 10, 11, 13), (1, 1, 0, 1)),
    sample((5, 6, 7, 8, 9, 10), (20, 21), (1, 1)),  # the first's own beginning as a prompt
    sample((5, 6, 30), (31,), (1,)),
    sample((40,), (41, 42), (1, 1)),
]


@pytest.mark.parametrize(
    "name", ["llama", "mistral", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3", "granite", "olmo2"]
)
def test_log_probabilities_and_gradients_are_those_of_the_samples_one_by_one(name: str) -> None:
    model = architecture(name)
    assert can_share(model)

    def gradients(loss: torch.Tensor) -> dict[str, torch.Tensor]:
        model.zero_grad()
        loss.backward()
        return {key: value.grad.clone() for key, value in model.named_parameters() if value.grad is not None}

    apart, weight = [], 0.0
    for one in FORKS:
        ids = torch.tensor([[*one.prompt_ids, *one.completion_ids]])
        logprobs = model(ids).logits[0].log_softmax(-1)
        start = len(one.prompt_ids)
        apart.append(torch.stack([logprobs[start - 1 + i, ids[0, start + i]] for i in range(len(one.mask))]))
    loss = sum(
        (1 + number) * (found * torch.tensor(one.mask)).sum()
        for number, (found, one) in enumerate(zip(apart, FORKS, strict=True))
    )
    expected = gradients(loss)
    tree = Tree.of(FORKS).tensors(torch.device("cpu"))
    places, labels = tree.pop("places"), tree.pop("shift_labels")
    scored = model(**tree).logits[0].log_softmax(-1).gather(1, labels[0].clamp(min=0)[:, None])[:, 0]
    weight = torch.tensor(0.0)
    for number, (one, found) in enumerate(zip(FORKS, places, strict=True)):
        mine = scored[found[: len(one.mask)]] * torch.tensor(one.mask)
        assert torch.allclose(mine, apart[number].detach() * torch.tensor(one.mask), atol=1e-5)
        weight = weight + (1 + number) * mine.sum()
    for key, value in gradients(weight).items():
        assert torch.allclose(value, expected[key], atol=2e-5), key


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo", "cispo"])
@pytest.mark.parametrize("settings", [{}, {"max_forward_tokens": 40}], ids=["plain", "budget"])
def test_a_step_is_the_same_with_and_without(tmp_path: Path, tools: Any, loss_type: str, settings: Any) -> None:
    source = tools.Recorded(forks=True)
    shared = tools.one_step(tmp_path / "a", source, loss_type=loss_type, **settings)
    assert source.log["shared_tokens"] > 0.2
    apart = tools.one_step(
        tmp_path / "b", tools.Recorded(forks=True), loss_type=loss_type, share_prefixes=False, **settings
    )
    assert tools.distance(shared, apart) < 1e-5
    assert tools.distance(shared, tools.tiny_model().state_dict()) > 1e-3


def test_a_step_against_a_reference_model_is_the_same(tmp_path: Path, tools: Any) -> None:
    from transformers import AutoModelForCausalLM

    tools.tiny_model().save_pretrained(tmp_path / "model")  # TRL loads the reference from where the model came

    def step(name: str, **settings: Any) -> Any:
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
        source = tools.Recorded(forks=True)
        return tools.one_step(tmp_path / name, source, model=model, beta=0.5, max_steps=2, **settings)

    assert tools.distance(step("a"), step("b", share_prefixes=False)) < 1e-4


def test_models_whose_attention_takes_no_such_mask_are_read_row_by_row() -> None:
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    def of(name: str, attention: str = "sdpa", **extra: Any) -> Any:
        return AutoModelForCausalLM.from_config(CONFIG_MAPPING[name](**SIZES | extra), attn_implementation=attention)

    assert can_share(of("llama"))
    assert not can_share(of("llama", attention="eager"))
    assert not can_share(of("mistral", sliding_window=16))
    assert not can_share(of("qwen2", use_sliding_window=True, sliding_window=16, max_window_layers=1))
    assert not can_share(of("gemma2", attention="eager"))


def test_a_step_of_adapters_is_the_same_with_and_without(tmp_path: Path, tools: Any) -> None:
    def step(name: str, **settings: Any) -> Any:
        source = tools.Recorded(forks=True)
        return tools.one_step(tmp_path / name, source, peft=tools.adapters(), **settings), source.log["shared_tokens"]

    (shared, saved), (apart, none) = step("a"), step("b", share_prefixes=False)
    start, _ = step("c", learning_rate=0.0)
    assert saved > 0.2
    assert none == 0
    assert tools.distance(shared, apart) < 1e-5
    moved = {name for name in shared if not torch.equal(shared[name], start[name])}
    assert moved == {name for name in shared if "lora_" in name}
