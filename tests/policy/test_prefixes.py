"""What has been read of a conversation is not read again, and nothing that is sampled changes by that."""

import asyncio
import copy
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from skyrl_gym.chat.testing import tiny_tokenizer  # noqa: E402
from skyrl_gym.policy import Completion, Prompt, Sampling  # noqa: E402
from skyrl_gym.policy.decoding import Decoder, Row  # noqa: E402
from skyrl_gym.policy.prefixes import Prefixes  # noqa: E402
from skyrl_gym.policy.transformers import TransformersPolicy  # noqa: E402

ANSWER = (70, 71, 72)  # between two turns of a conversation
Turns = list[Completion]


class Reading:
    """Counts the tokens that a model is fed in passes that read prompts."""

    def __init__(self, model: Any) -> None:
        self.model, self.tokens = model, list[int]()
        self._forward = model.forward

    def __enter__(self) -> "Reading":
        def forward(*args: Any, **kwargs: Any) -> Any:
            ids = kwargs["input_ids"]
            if ids.shape[1] > 1:
                self.tokens.append(ids.numel())
            return self._forward(*args, **kwargs)

        forward.__signature__ = inspect.signature(self._forward)  # type: ignore[attr-defined]
        self.model.forward = forward
        return self

    def __exit__(self, *_: object) -> None:
        del self.model.forward


@pytest.fixture
def model(tiny_model: Any) -> Iterator[Any]:
    yield copy.deepcopy(tiny_model)


async def converse(policy: TransformersPolicy, prompt: tuple[int, ...], turns: int, sampling: Sampling) -> Turns:
    found = []
    for _ in range(turns):
        found.append(await policy.complete(Prompt((), (), prompt), sampling))
        prompt = (*prompt, *(found[-1].token_ids or ()), *ANSWER)
    return found


async def running(policy: TransformersPolicy) -> None:
    for _ in range(4_000):
        if (await policy.current_load()).running:
            break
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)


def conversations(model: Any, prompts: list[tuple[int, ...]], turns: int, **kwargs: Any) -> list[Turns]:
    async def run() -> list[Turns]:
        policy = TransformersPolicy(model, tiny_tokenizer(), **kwargs)
        asked = [Sampling(max_tokens=6 + 5 * i, seed=i, temperature=float(i % 2)) for i in range(len(prompts))]
        try:
            return await asyncio.gather(
                *(converse(policy, prompt, turns, s) for prompt, s in zip(prompts, asked, strict=True))
            )
        finally:
            await policy.aclose()

    return asyncio.run(run())


PROMPTS = [tuple(range(3, 3 + n)) for n in (40, 5, 40, 90, 12, 300)]


def test_turns_are_the_same_with_and_without_what_is_kept(model: Any) -> None:
    kept, again = (conversations(model, PROMPTS, 4, cache_tokens=tokens) for tokens in (10_000, 0))
    for one, other in zip(kept, again, strict=True):
        assert [turn.token_ids for turn in one] == [turn.token_ids for turn in other]
        for a, b in zip(one, other, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


def test_a_next_turn_reads_only_what_is_new(model: Any) -> None:
    with Reading(model) as reading:
        ((first, second, *_),) = conversations(model, [PROMPTS[3]], 3)
    last_of_first, last_of_second = 1, 1  # the last id that is sampled is never fed
    assert len(first.token_ids or ()) > 1 < len(second.token_ids or ())
    assert reading.tokens == [90, last_of_first + len(ANSWER), last_of_second + len(ANSWER)]


def test_without_room_everything_is_read_again(model: Any) -> None:
    with Reading(model) as reading:
        ((first, second, *_),) = conversations(model, [PROMPTS[3]], 3, cache_tokens=0)
    sizes = [90]
    for turn in (first, second):
        sizes.append(sizes[-1] + len(turn.token_ids or ()) + len(ANSWER))
    assert reading.tokens == sizes


def test_a_prompt_that_was_asked_before_is_read_for_its_last_id_only(model: Any) -> None:
    async def run() -> tuple[Completion, Completion]:
        policy = TransformersPolicy(model, tiny_tokenizer())
        asked = Prompt((), (), PROMPTS[3])
        first = await policy.complete(asked, Sampling(temperature=0, max_tokens=8))
        with Reading(model) as reading:
            second = await policy.complete(asked, Sampling(temperature=0, max_tokens=8))
        await policy.aclose()
        assert reading.tokens == []  # one id: no more than a step of decoding
        return first, second

    first, second = asyncio.run(run())
    assert first.token_ids == second.token_ids
    assert first.logprobs == pytest.approx(second.logprobs, abs=1e-4)


@pytest.mark.parametrize("how", ["load_weights", "in place, by a trainer of one's own"])
def test_new_weights_make_everything_be_read_again(model: Any, how: str) -> None:
    changed = {name: weight + 0.3 * torch.randn_like(weight) for name, weight in model.state_dict().items()}
    asked = Prompt((), (), PROMPTS[3])
    greedy = Sampling(temperature=0, max_tokens=8)

    async def run() -> tuple[Completion, Completion]:
        policy, fresh = (TransformersPolicy(m, tiny_tokenizer()) for m in (model, copy.deepcopy(model)))
        await policy.complete(asked, greedy)
        if how == "load_weights":
            policy.load_weights(changed, 1)
        else:
            model.load_state_dict(changed)
        fresh.load_weights(changed, 1)
        found = await policy.complete(asked, greedy), await fresh.complete(asked, greedy)
        await policy.aclose()
        await fresh.aclose()
        return found

    found, expected = asyncio.run(run())
    assert found.token_ids == expected.token_ids
    assert found.logprobs == expected.logprobs


def test_what_was_read_under_earlier_weights_in_part_is_not_kept(model: Any) -> None:
    changed = {name: weight + 0.3 * torch.randn_like(weight) for name, weight in model.state_dict().items()}

    async def run() -> None:
        policy = TransformersPolicy(model, tiny_tokenizer())
        started = asyncio.create_task(
            policy.complete(Prompt((), (), PROMPTS[3]), Sampling(temperature=0, max_tokens=400))
        )
        await running(policy)
        await asyncio.to_thread(policy.load_weights, changed, 1)
        await policy.complete(Prompt((), (), (5,)), Sampling(max_tokens=1))
        assert not started.done()
        found = await started
        assert found.token_versions is not None, "the new weights came too late to meet a row under way"
        with Reading(model) as reading:
            await policy.complete(Prompt((), (), (*PROMPTS[3], 9)), Sampling(max_tokens=2))
        assert reading.tokens == [91]
        await policy.aclose()

    asyncio.run(run())


def test_rows_of_which_different_parts_are_known_are_read_together(model: Any) -> None:
    decoder = Decoder(model, 0, frozenset({2}), cache_tokens=10_000)
    for batch in decoder.admit((), [Row(ids, Sampling(max_tokens=1)) for ids in PROMPTS[:4]]):
        assert decoder.step(batch, 0) is None
    longer = [(*ids, *ANSWER, *range(50, 50 + i)) for i, ids in enumerate(PROMPTS[:5])]
    with Reading(model) as reading:
        batches = decoder.admit((), [Row(ids, Sampling()) for ids in longer])
    assert len(batches) < len(longer)
    assert sum(reading.tokens) < 2 * (12 + 7 + 4 * len(ANSWER) + 6)
    for batch in batches:
        for row, logits in zip(batch.rows, batch.logits, strict=True):
            with torch.no_grad():
                assert torch.allclose(logits, model(torch.tensor([row.prompt])).logits[0, -1], atol=1e-5)


def test_running_rows_take_the_room_of_what_is_kept(model: Any) -> None:
    async def run() -> None:
        policy = TransformersPolicy(model, tiny_tokenizer(), cache_tokens=200)
        await policy.complete(Prompt((), (), PROMPTS[3]), Sampling(max_tokens=1))
        await policy.complete(Prompt((), (), PROMPTS[5]), Sampling(max_tokens=10, seed=0))
        with Reading(model) as reading:
            await policy.complete(Prompt((), (), (*PROMPTS[3], 9, 9)), Sampling(max_tokens=1))
        await policy.aclose()
        assert reading.tokens == [92]

    asyncio.run(run())


def test_layers_with_a_window_keep_nothing_and_answer_all_the_same() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=400, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=16, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    windowed = MistralForCausalLM(config).eval()
    with Reading(windowed) as reading:
        kept = conversations(windowed, PROMPTS[3:4], 2)
    assert reading.tokens[0] < reading.tokens[1]
    again = conversations(windowed, PROMPTS[3:4], 2, cache_tokens=0)
    assert [turn.token_ids for turn in kept[0]] == [turn.token_ids for turn in again[0]]


ids = st.lists(st.integers(0, 2), min_size=1, max_size=8).map(tuple)


@given(st.lists(ids, max_size=12), ids, st.integers(1, 40))
def test_the_longest_beginning_that_is_kept_is_found(sequences: list[tuple[int, ...]], prompt: Any, room: int) -> None:
    prefixes = Prefixes(room)
    for sequence in sequences:
        prefixes.keep(sequence, lambda read=sequence: [(torch.tensor(read), torch.tensor(read))])
        assert prefixes.tokens <= room
    if sum(map(len, sequences)) <= room:
        begun = [prompt[:n] for n in range(len(prompt)) if any(s[:n] == prompt[:n] for s in sequences)]
        expected = len(begun[-1]) if begun else 0
        assert prefixes.find(prompt).tokens == expected
    known = prefixes.find(prompt)
    if known.tokens:
        assert tuple(known.layers[0][0].tolist()[: known.tokens]) == prompt[: known.tokens]


def test_the_oldest_makes_room() -> None:
    prefixes = Prefixes(6)
    for sequence in ((1, 1), (2, 2), (3, 3), (4, 4)):
        prefixes.keep(sequence, list)
        assert prefixes.find((1, 1, 5)).tokens == 2 * (sequence != (4, 4))
    assert [prefixes.find((n, n, 5)).tokens for n in (1, 2, 3, 4)] == [0, 2, 2, 2]
    prefixes.leave_room(3)
    assert [prefixes.find((n, n, 5)).tokens for n in (1, 2, 3, 4)] == [0, 0, 0, 2]
    prefixes.renew(1)
    assert prefixes.tokens == prefixes.find((4, 4, 5)).tokens == 0


def test_a_sequence_takes_the_place_of_what_it_goes_on_from() -> None:
    prefixes = Prefixes(10)
    prefixes.keep((1, 2, 3), list)
    prefixes.keep((1, 2, 3, 4, 5), list)
    assert prefixes.tokens == 5
    prefixes.keep((1, 2), list)
    assert prefixes.tokens == 5
    prefixes.keep(tuple(range(11)), list)
    assert prefixes.tokens == 5
