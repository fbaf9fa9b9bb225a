"""Sampling in process: exact ids and logprobs, whatever shares the batch."""

import asyncio
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from skyrl_gym.chat.testing import tiny_tokenizer  # noqa: E402
from skyrl_gym.errors import ConfigError, PolicyError  # noqa: E402
from skyrl_gym.messages import user  # noqa: E402
from skyrl_gym.policy import Completion, Prompt, Sampling  # noqa: E402
from skyrl_gym.policy.decoding import Decoder, Row  # noqa: E402
from skyrl_gym.policy.transformers import TransformersPolicy  # noqa: E402

PROMPTS = [tuple(range(3, 3 + n)) for n in (5, 17, 9, 30)]


def sample(model: Any, asked: list[tuple[tuple[int, ...], Sampling]], **kwargs: Any) -> list[Completion]:
    async def run() -> list[Completion]:
        policy = TransformersPolicy(model, tiny_tokenizer(), **kwargs)
        try:
            return await asyncio.gather(*(policy.complete(Prompt((), (), ids), s) for ids, s in asked))
        finally:
            await policy.aclose()

    return asyncio.run(run())


def exact_logprobs(model: Any, prompt: tuple[int, ...], sampled: tuple[int, ...], temperature: float) -> Any:
    ids = torch.tensor([prompt + sampled])
    with torch.no_grad():
        logits = model(ids).logits[0, len(prompt) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(sampled)[:, None])[:, 0]


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_logprobs_are_those_of_a_plain_forward_pass(tiny_model: Any, temperature: float) -> None:
    asked = [(ids, Sampling(temperature=temperature, max_tokens=12, seed=i)) for i, ids in enumerate(PROMPTS)]
    for (ids, _), found in zip(asked, sample(tiny_model, asked), strict=True):
        assert found.token_ids is not None and found.logprobs is not None
        expected = exact_logprobs(tiny_model, ids, found.token_ids, temperature)
        assert torch.allclose(torch.tensor(found.logprobs), expected, atol=1e-4)


def test_greedy_takes_the_likeliest_token(tiny_model: Any) -> None:
    (found,) = sample(tiny_model, [(PROMPTS[0], Sampling(temperature=0, max_tokens=8))])
    ids = list(PROMPTS[0])
    for token in found.token_ids or ():
        with torch.no_grad():
            assert int(tiny_model(torch.tensor([ids])).logits[0, -1].argmax()) == token
        ids.append(token)


def test_a_seeded_row_does_not_depend_on_its_batch(tiny_model: Any) -> None:
    asked = [(ids, Sampling(max_tokens=20, seed=i)) for i, ids in enumerate(PROMPTS)]
    together = sample(tiny_model, asked)
    apart = [sample(tiny_model, [one])[0] for one in asked]
    small = sample(tiny_model, asked, max_batch=2)
    assert [c.token_ids for c in together] == [c.token_ids for c in apart] == [c.token_ids for c in small]


def test_equal_prompts_share_their_reading_not_their_samples(tiny_model: Any) -> None:
    asked = [(PROMPTS[1], Sampling(max_tokens=10, seed=i)) for i in range(6)]
    found = sample(tiny_model, asked)
    assert len({c.token_ids for c in found}) == 6
    assert found[3].token_ids == sample(tiny_model, [asked[3]])[0].token_ids


def test_rows_end_at_their_own_limits(tiny_model: Any) -> None:
    asked = [(ids, Sampling(max_tokens=n, seed=3)) for ids, n in zip(PROMPTS, (1, 4, 40, 9), strict=True)]
    for (_, sampling), found in zip(asked, sample(tiny_model, asked), strict=True):
        assert found.token_ids is not None and found.logprobs is not None
        assert len(found.logprobs) == len(found.token_ids) <= sampling.max_tokens
        ended = found.token_ids[-1] == 2
        assert found.finish_reason == ("stop" if ended else "length")
        assert 2 not in found.token_ids[:-1]


def test_top_k_and_top_p_bound_what_is_drawn(tiny_model: Any) -> None:
    (best,) = sample(tiny_model, [(PROMPTS[0], Sampling(temperature=0, max_tokens=1))])
    for sampling in (Sampling(top_k=1, max_tokens=1), Sampling(top_p=1e-9, max_tokens=1)):
        (found,) = sample(tiny_model, [(PROMPTS[0], sampling)])
        assert found.token_ids == best.token_ids
        assert found.logprobs == pytest.approx((0.0,), abs=1e-5)


def test_samples_follow_the_distribution(tiny_model: Any) -> None:
    with torch.no_grad():
        expected = tiny_model(torch.tensor([PROMPTS[0]])).logits[0, -1].softmax(-1)
    asked = [(PROMPTS[0], Sampling(max_tokens=1, seed=i)) for i in range(2_000)]
    ids = torch.tensor([(c.token_ids or (0,))[0] for c in sample(tiny_model, asked, max_batch=500)])
    found = torch.bincount(ids, minlength=400).float() / len(ids)
    assert float((found - expected).abs().sum()) < 0.55  # by chance about 0.35 for 400 near-equal tokens
    halves = expected.cumsum(0) < 0.5
    assert abs(float(found[halves].sum()) - float(expected[halves].sum())) < 0.05


def test_new_weights_show_in_the_answer_and_in_its_version(tiny_model: Any) -> None:
    import copy

    async def run() -> tuple[Completion, Completion]:
        policy = TransformersPolicy(copy.deepcopy(tiny_model), tiny_tokenizer())
        prompt, sampling = Prompt((), (), PROMPTS[0]), Sampling(temperature=0, max_tokens=6)
        before = await policy.complete(prompt, sampling)
        changed = {n: w + 0.3 * torch.randn_like(w) for n, w in tiny_model.state_dict().items()}
        policy.load_weights(changed, 7)
        after = await policy.complete(prompt, sampling)
        with pytest.raises(PolicyError, match=r"have no 'model.embed_tokens.weight'"):
            policy.load_weights({}, 8)
        await policy.aclose()
        return before, after

    torch.manual_seed(1)
    before, after = asyncio.run(run())
    assert (before.policy_version, after.policy_version) == (0, 7)
    assert before.logprobs != after.logprobs


def test_a_failure_in_the_model_reaches_every_caller_and_the_policy_lives_on(tiny_model: Any) -> None:
    async def run() -> None:
        policy = TransformersPolicy(tiny_model, tiny_tokenizer())
        bad = [policy.complete(Prompt((), (), (9_999,)), Sampling(max_tokens=3)) for _ in range(3)]
        found = await asyncio.gather(*bad, return_exceptions=True)
        assert all(isinstance(error, PolicyError) for error in found)
        assert (await policy.complete(Prompt((), (), (5,)), Sampling(max_tokens=3))).token_ids
        await policy.aclose()
        await policy.aclose()

    asyncio.run(run())


def test_a_cancelled_request_leaves_the_batch(tiny_model: Any) -> None:
    async def run() -> None:
        policy = TransformersPolicy(tiny_model, tiny_tokenizer())
        greedy = Sampling(temperature=0, max_tokens=100_000)
        long = asyncio.create_task(policy.complete(Prompt((), (), (5,)), greedy))
        await asyncio.sleep(0.1)
        long.cancel()
        with pytest.raises(asyncio.CancelledError):
            await long
        assert (await policy.complete(Prompt((), (), (5,)), Sampling(max_tokens=3))).token_ids
        await policy.aclose()

    asyncio.run(run())


def test_a_prompt_without_ids_is_refused(tiny_model: Any) -> None:
    policy = TransformersPolicy(tiny_model, tiny_tokenizer())
    with pytest.raises(ConfigError, match="reads token ids"):
        asyncio.run(policy.complete(Prompt((user("q"),)), Sampling()))


def test_no_tokens_wanted_none_decoded(tiny_model: Any) -> None:
    (found,) = sample(tiny_model, [(PROMPTS[0], Sampling(max_tokens=0))])
    assert (found.token_ids, found.logprobs, found.finish_reason) == ((), (), "length")


def started(policy: TransformersPolicy, ids: tuple[int, ...], sampling: Sampling) -> asyncio.Task[Completion]:
    return asyncio.create_task(policy.complete(Prompt((), (), ids), sampling))


async def running(policy: TransformersPolicy, rows: int) -> None:
    for _ in range(4_000):
        if (await policy.current_load()).running >= rows:
            return
        await asyncio.sleep(0.005)


LONG = Sampling(temperature=0, max_tokens=100_000)  # greedy and without an end: only cancelling stops it


def test_a_request_joins_the_running_batch_and_leaves_it_before_the_others_end(tiny_model: Any) -> None:
    async def run() -> None:
        policy = TransformersPolicy(tiny_model, tiny_tokenizer())
        long = started(policy, (5,), LONG)
        await running(policy, 1)
        alone = sample_alone(tiny_model, PROMPTS[0])
        joined = await policy.complete(Prompt((), (), PROMPTS[0]), Sampling(max_tokens=12, seed=3))
        assert joined.token_ids == alone.token_ids
        assert joined.logprobs == pytest.approx(alone.logprobs, abs=1e-4)
        assert not long.done()
        long.cancel()
        await asyncio.wait([long])
        await policy.aclose()

    def sample_alone(model: Any, ids: tuple[int, ...]) -> Completion:
        import concurrent.futures

        with concurrent.futures.ThreadPoolExecutor() as pool:
            return pool.submit(sample, model, [(ids, Sampling(max_tokens=12, seed=3))]).result()[0]

    asyncio.run(run())


def test_more_requests_than_the_batch_holds_wait_for_room(tiny_model: Any) -> None:
    async def run() -> None:
        policy = TransformersPolicy(tiny_model, tiny_tokenizer(), max_batch=2)
        long = [started(policy, (5, i), LONG) for i in range(2)]
        await running(policy, 2)
        waiting = started(policy, (7,), Sampling(max_tokens=2))
        await asyncio.sleep(0.1)
        assert (await policy.current_load()).waiting == 1
        assert not waiting.done()
        long[0].cancel()
        assert (await waiting).token_ids
        long[1].cancel()
        await asyncio.wait(long)
        await policy.aclose()

    asyncio.run(run())


def test_new_weights_are_not_kept_waiting_by_a_long_completion_and_each_id_has_its_version(tiny_model: Any) -> None:
    import copy

    async def run() -> Completion:
        policy = TransformersPolicy(copy.deepcopy(tiny_model), tiny_tokenizer())
        asked = started(policy, (5,), Sampling(temperature=0, max_tokens=300))
        await running(policy, 1)
        changed = {name: weight + 0.01 for name, weight in tiny_model.state_dict().items()}
        for version in (1, 2):
            await asyncio.wait_for(asyncio.to_thread(policy.load_weights, changed, version), 10)
            await asyncio.sleep(0.02)
        found = await asked
        await policy.aclose()
        return found

    found = asyncio.run(run())
    assert found.token_ids is not None and found.token_versions is not None
    assert len(found.token_versions) == len(found.token_ids)
    assert list(found.token_versions) == sorted(found.token_versions)
    assert found.token_versions[-1] == 2
    assert found.policy_version == found.token_versions[0]


@pytest.mark.parametrize("lengths", [[3, 3, 4, 200], [1, 400, 2, 390, 3], [10] * 8, [1, 2, 4, 8, 16, 32, 64, 128]])
def test_padding_never_more_than_doubles_a_batch_and_no_row_is_lost(tiny_model: Any, lengths: list[int]) -> None:
    decoder = Decoder(tiny_model, 0, frozenset({2}))
    rows = [
        Row(tuple(3 + i % 300 for i in range(length)), Sampling(max_tokens=4, seed=i))
        for i, length in enumerate(lengths)
    ]
    batches = decoder.admit((), rows[:2])
    batches = decoder.admit(batches, rows[2:])
    assert sorted(len(row.prompt) for batch in batches for row in batch.rows) == sorted(lengths)
    for batch in batches:
        assert batch.mask.numel() <= 2 * int(batch.mask.sum())
        assert batch.mask.sum(1).tolist() == [row.length for row in batch.rows]


def test_what_joins_at_the_next_token_is_no_queue(tiny_model: Any) -> None:
    async def run() -> None:
        policy = TransformersPolicy(tiny_model, tiny_tokenizer(), max_batch=4)
        long = [started(policy, (5, i), LONG) for i in range(4)]
        seen = []
        for _ in range(50):
            seen.append(await policy.current_load())
            await asyncio.sleep(0.001)
        assert {(load.waiting, load.places) for load in seen} == {(0, 4)}
        assert seen[-1].running == 4
        for task in long:
            task.cancel()
        await asyncio.wait(long)
        await policy.aclose()

    asyncio.run(run())
