"""A real vLLM on the CPU (`make test-vllm`): exact ids and logprobs, new weights in flight, servers that die.

In fp32, so that transformers is an exact reference: greedy ids are equal, logprobs within 0.001.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym import Task, TaskSet, TextEnv, tool
from skyrl_gym.errors import ConfigError, PolicyError
from skyrl_gym.messages import user
from skyrl_gym.policy import Completion, Prompt, Sampling, load_renderer, resolve_model
from skyrl_gym.policy.vllm import VllmPolicy
from skyrl_gym.rollout import Deadlines, Journal, RolloutLimits, Runner
from skyrl_gym.rollout.requests import requests_for
from tests.policy.real_vllm import NEEDED, RealVllm

pytestmark = NEEDED
TOLERANCE = 1e-3
GREEDY = Sampling(temperature=0, max_tokens=24)
TEXTS = ("Name a river.", "Count to five.", "Say hello in French.")


@pytest.fixture(scope="module")
def model() -> Path:
    return Path(resolve_model("smollm2-135m"))


@pytest.fixture(scope="module")
def pair(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RealVllm]]:
    """Two servers of the same model, in fp32; at most 4 requests are decoded at once."""
    logs = tmp_path_factory.mktemp("vllm")
    options = ("--dtype", "float32", "--served-model-name", "small", "--max-num-seqs", "4", "--seed", "0")
    servers = [RealVllm(model, logs / str(number), *options) for number in range(2)]
    for server in servers:
        server.start()
    for server in servers:
        server.wait()
    yield servers
    for server in servers:
        server.kill()


@pytest.fixture
def vllm(pair: list[RealVllm]) -> RealVllm:
    return pair[0]


def opened(model: Path, *servers: RealVllm, **kwargs: Any) -> VllmPolicy:
    return VllmPolicy([server.url for server in servers], "small", renderer=load_renderer(str(model)), **kwargs)


def prompt_of(policy: VllmPolicy, text: str) -> Prompt:
    assert policy.renderer is not None
    return Prompt((user(text),), (), policy.renderer.prompt_ids((user(text),)))


def run(policy: VllmPolicy, work: Callable[[VllmPolicy], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        try:
            return await work(policy)
        finally:
            await policy.aclose()

    return asyncio.run(whole())


class Reference:
    """The same weights in transformers."""

    def __init__(self, folder: Path, adapter: Path | None = None) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        if adapter is not None:
            from peft import PeftModel

            self._model = PeftModel.from_pretrained(self._model, adapter).eval()

    def greedy(self, prompt: Prompt, count: int) -> tuple[int, ...]:
        import torch

        asked = torch.tensor([prompt.token_ids])
        found = self._model.generate(
            input_ids=asked, attention_mask=torch.ones_like(asked), max_new_tokens=count, do_sample=False,
            pad_token_id=2,
        )  # fmt: skip
        return tuple(found[0, asked.shape[1] :].tolist())

    def logprobs(self, prompt: Prompt, ids: tuple[int, ...], temperature: float = 1.0) -> list[float]:
        import torch

        assert prompt.token_ids is not None
        with torch.no_grad():
            logits = self._model(torch.tensor([prompt.token_ids + ids])).logits[0, len(prompt.token_ids) - 1 : -1]
        chosen = (logits / temperature).log_softmax(-1).gather(1, torch.tensor(ids)[:, None])
        return [float(value) for value in chosen[:, 0]]


def assert_is_of(reference: Reference, prompt: Prompt, found: Completion, temperature: float = 1.0) -> None:
    assert found.token_ids and found.logprobs and len(found.token_ids) == len(found.logprobs)
    expected = reference.logprobs(prompt, found.token_ids, temperature)
    assert max(abs(a - b) for a, b in zip(found.logprobs, expected, strict=True)) < TOLERANCE


@pytest.fixture(scope="module")
def reference(model: Path) -> Reference:
    return Reference(model)


# ---- ids and logprobs


def test_greedy_ids_are_the_references_and_logprobs_are_its_within_a_thousandth(
    vllm: RealVllm, model: Path, reference: Reference
) -> None:
    async def ask(policy: VllmPolicy) -> list[tuple[Prompt, Completion]]:
        prompts = [prompt_of(policy, text) for text in TEXTS]
        return list(
            zip(prompts, await asyncio.gather(*(policy.complete(p, GREEDY) for p in prompts)), strict=True)
        )  # fmt: skip

    for prompt, found in run(opened(model, vllm), ask):
        assert found.token_ids == reference.greedy(prompt, 24)
        assert_is_of(reference, prompt, found)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
def test_logprobs_are_those_of_the_distribution_that_was_sampled_from(
    vllm: RealVllm, model: Path, reference: Reference, temperature: float
) -> None:
    async def ask(policy: VllmPolicy) -> tuple[Prompt, Completion]:
        prompt = prompt_of(policy, TEXTS[0])
        return prompt, await policy.complete(prompt, Sampling(temperature=temperature, max_tokens=24, seed=5))

    prompt, found = run(opened(model, vllm), ask)
    assert_is_of(reference, prompt, found, temperature)


def test_the_ids_are_those_that_were_generated_also_where_their_text_would_be_tokenised_otherwise(
    vllm: RealVllm, model: Path, reference: Reference
) -> None:
    """Hot sampling writes what no tokenizer would; its logprobs fit only the ids themselves."""

    async def ask(policy: VllmPolicy) -> list[tuple[Prompt, Completion]]:
        prompt = prompt_of(policy, TEXTS[0])
        hot = (Sampling(temperature=2.0, max_tokens=24, seed=seed) for seed in range(4))
        return [(prompt, found) for found in await asyncio.gather(*(policy.complete(prompt, s) for s in hot))]

    policy = opened(model, vllm)
    assert policy.renderer is not None
    tokenizer = policy.renderer.tokenizer
    found = run(policy, ask)
    for prompt, completion in found:
        assert_is_of(reference, prompt, completion, 2.0)
    again = [tuple(tokenizer.encode(completion.text, add_special_tokens=False)) for _, completion in found]
    assert any(ids != completion.token_ids for ids, (_, completion) in zip(again, found, strict=True))


def test_a_turn_is_appended_to_and_its_prompt_is_taken_as_it_is(
    vllm: RealVllm, model: Path, reference: Reference
) -> None:
    async def ask(policy: VllmPolicy) -> tuple[Prompt, Completion]:
        assert policy.renderer is not None
        first = prompt_of(policy, TEXTS[0])
        answer = await policy.complete(first, GREEDY)
        assert answer.token_ids and first.token_ids
        ended = answer.token_ids[-1] in policy.renderer.eos_ids
        grown = first.token_ids + answer.token_ids + policy.renderer.extend((user("Another."),), ended=ended)
        second = Prompt((), (), grown)
        return second, await policy.complete(second, GREEDY)

    prompt, found = run(opened(model, vllm), ask)
    assert found.token_ids == reference.greedy(prompt, 24)


def test_a_prompt_that_is_too_long_is_a_completion_without_room_and_a_wrong_name_is_refused(
    vllm: RealVllm, model: Path
) -> None:
    full = run(opened(model, vllm), lambda policy: policy.complete(Prompt((), (), (5,) * 3_000), GREEDY))
    assert (full.token_ids, full.finish_reason) == ((), "length")
    wrong = VllmPolicy(vllm.url, "no-such-model", renderer=load_renderer(str(model)))
    with pytest.raises(ConfigError, match="no-such-model"):
        run(wrong, lambda policy: policy.complete(Prompt((), (), (5,)), GREEDY))


# ---- what a server is busy with


async def until(policy: VllmPolicy, wanted: Callable[[Any], bool]) -> Any:
    for _ in range(100):
        load = await policy.current_load()
        assert load.kv_cache is not None and 0 <= load.kv_cache <= 1
        if wanted(load):
            return load
        await asyncio.sleep(0.5)
    raise AssertionError(f"the load stays {load}")


def test_a_cancelled_request_frees_its_place_on_the_server(vllm: RealVllm, model: Path) -> None:
    async def ask(policy: VllmPolicy) -> None:
        sampling = Sampling(max_tokens=1_500)
        asked = [asyncio.create_task(policy.complete(prompt_of(policy, f"Tell me {i}."), sampling)) for i in range(7)]
        seen = await until(policy, lambda load: load.running == 4 and load.waiting >= 1)
        assert seen.kv_cache > 0
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await until(policy, lambda load: load.running == load.waiting == 0)

    run(opened(model, vllm), ask)


class Talk(TextEnv):
    """Some turns of a few tokens each."""

    def load_tasks(self, split: str) -> TaskSet:
        return TaskSet.from_rows([{"id": f"t{i}"} for i in range(8)])

    def setup(self, task: Task) -> str:
        return f"Tell me about {task.id}."

    @tool
    def nothing(self) -> str:
        """Does nothing."""
        return "nothing"

    def grade(self) -> float:
        return 1.0


def runner(policy: VllmPolicy, journal: Journal | None = None, turns: int = 3, tokens: int = 24) -> Runner:
    return Runner(
        policy, Sampling(max_tokens=tokens, seed=0), {}, RolloutLimits(live=24, setup=24, max_context=1_000),
        Deadlines(), journal, make=lambda env_id, **_: Talk(max_turns=turns),
    )  # fmt: skip


def test_episodes_are_admitted_by_the_load_that_the_server_reports(vllm: RealVllm, model: Path) -> None:
    """The server decodes 4 at once: the queue behind them is noticed, and episodes are held back."""
    waiting: list[int] = []

    async def ask(policy: VllmPolicy) -> Counter[str]:
        async def watch() -> None:
            while True:
                waiting.append((await policy.current_load()).waiting)
                await asyncio.sleep(0.5)

        watching = asyncio.create_task(watch())
        found = [t async for t in runner(policy, tokens=40).run(requests_for("talk", Talk().tasks, 6))]
        watching.cancel()
        return Counter(trajectory.stop_reason.value for trajectory in found)

    endings = run(opened(model, vllm), ask)
    assert endings.total() == 48
    busy = waiting[: max(i for i, count in enumerate(waiting) if count) + 1]
    assert max(busy) > 4, busy  # it began with more than the server can decode
    assert sum(busy[len(busy) // 2 :]) / len(busy[len(busy) // 2 :]) < max(busy) / 2, busy


# ---- new weights


@pytest.fixture(scope="module")
def other_weights(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("weights") / "other"
    changed = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in changed.named_parameters():
            if "down_proj" in name:
                weight.mul_(1 + 0.2 * torch.randn_like(weight))
    changed.save_pretrained(folder)
    return folder


def test_new_weights_change_the_answers_to_those_of_the_reference_and_the_old_ones_bring_them_back(
    vllm: RealVllm, model: Path, other_weights: Path
) -> None:
    async def ask(policy: VllmPolicy) -> tuple[Prompt, list[Completion]]:
        prompt = prompt_of(policy, TEXTS[0])
        found = [await policy.complete(prompt, GREEDY)]
        for version, folder in enumerate((other_weights, model), 1):
            await policy.load_weights(folder, version)
            found.append(await policy.complete(prompt, GREEDY))
        return prompt, found

    prompt, (before, changed, after) = run(opened(model, vllm), ask)
    assert [c.policy_version for c in (before, changed, after)] == [0, 1, 2]
    assert changed.token_ids != before.token_ids
    other = Reference(other_weights)
    assert changed.token_ids == other.greedy(prompt, 24)
    assert_is_of(other, prompt, changed)
    assert (after.token_ids, after.logprobs) == (before.token_ids, before.logprobs)


def test_each_token_of_a_completion_in_flight_is_of_the_weights_that_its_version_names(
    vllm: RealVllm, model: Path, reference: Reference, other_weights: Path
) -> None:
    async def ask(policy: VllmPolicy) -> tuple[Prompt, list[Completion]]:
        prompt = prompt_of(policy, "Write a very long story about a river and everyone who lives on it.")
        sampling = Sampling(max_tokens=300)
        asked = [asyncio.create_task(policy.complete(prompt, sampling)) for _ in range(4)]
        await until(policy, lambda load: load.running == 4)
        await asyncio.sleep(2.5)
        await policy.load_weights(other_weights, 1)
        found = await asyncio.gather(*asked)
        await policy.load_weights(model, 2)
        return prompt, list(found)

    prompt, found = run(opened(model, vllm), ask)
    assert any(completion.token_versions for completion in found)
    references = (reference, Reference(other_weights))
    for completion in found:
        assert completion.token_ids and completion.logprobs and len(completion.token_ids) <= 300
        versions = completion.token_versions or (completion.policy_version,) * len(completion.token_ids)
        assert list(versions) == sorted(versions) and set(versions) <= {0, 1}
        expected = [of.logprobs(prompt, completion.token_ids) for of in references]
        for place, version in enumerate(versions):
            assert abs(completion.logprobs[place] - expected[version][place]) < TOLERANCE


def test_a_pause_keeps_what_there_is_and_nothing_is_sampled_in_it(
    vllm: RealVllm, model: Path, reference: Reference
) -> None:
    async def ask(policy: VllmPolicy) -> tuple[Prompt, Completion]:
        prompt = prompt_of(policy, "Write a very long story about a river.")
        asked = asyncio.create_task(policy.complete(prompt, Sampling(temperature=0, max_tokens=60)))
        await until(policy, lambda load: load.running == 1)
        async with policy.halted():
            await asyncio.sleep(0.6)
            assert (await until(policy, lambda load: load.running == 0)).waiting == 0
            assert not asked.done()
        return prompt, await asked

    prompt, found = run(opened(model, vllm), ask)
    assert found.token_ids == reference.greedy(prompt, 60)


def test_an_adapter_is_loaded_replaced_and_unloaded_while_the_server_runs(
    vllm: RealVllm, model: Path, reference: Reference, tmp_path: Path
) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    torch.manual_seed(0)
    adapted = get_peft_model(base, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    for name in ("first", "second"):
        with torch.no_grad():
            for key, weight in adapted.named_parameters():
                if "lora_B" in key:
                    weight.mul_(3.0)
        adapted.save_pretrained(tmp_path / name)

    async def ask(policy: VllmPolicy) -> tuple[Prompt, list[Completion]]:
        prompt = prompt_of(policy, TEXTS[0])
        found = [await policy.complete(prompt, GREEDY)]
        for version, name in enumerate(("first", "second"), 1):
            await policy.load_adapter(tmp_path / name, version)
            found.append(await policy.complete(prompt, GREEDY))
        await policy.unload_adapter(3)
        return prompt, [*found, await policy.complete(prompt, GREEDY)]

    prompt, found = run(opened(model, vllm), ask)
    assert [completion.policy_version for completion in found] == [0, 1, 2, 3]
    wanted = (reference, *(Reference(model, tmp_path / name) for name in ("first", "second")), reference)
    for of, completion in zip(wanted, found, strict=True):
        assert completion.token_ids == of.greedy(prompt, 24)
        assert_is_of(of, prompt, completion)


# ---- servers that die


def test_a_run_over_two_servers_of_which_one_is_killed_loses_and_doubles_nothing(
    pair: list[RealVllm], model: Path, tmp_path: Path, other_weights: Path
) -> None:
    """Sessions move to the other server; the dead one misses new weights, and has them before it is asked again."""

    async def ask(policy: VllmPolicy) -> list[Any]:
        found = []
        with Journal(tmp_path / "journal.jsonl") as journal:
            async for trajectory in runner(policy, journal).run(requests_for("talk", Talk().tasks, 3)):
                found.append(trajectory)
                if len(found) == 4:
                    await asyncio.to_thread(pair[1].kill)
        return found

    async def after(policy: VllmPolicy) -> list[Completion]:
        found = await ask(policy)
        assert len({trajectory.key for trajectory in found}) == len(found) == 24
        assert all(trajectory.valid for trajectory in found), Counter(t.stop_reason.value for t in found)
        await policy.load_weights(other_weights, 1)  # one of the two is there
        pair[1].start()
        await asyncio.to_thread(pair[1].wait)
        await asyncio.to_thread(pair[0].kill)
        prompts = [prompt_of(policy, text) for text in TEXTS]
        answers = await asyncio.gather(*(policy.complete(prompt, GREEDY) for prompt in prompts))
        other = Reference(other_weights)
        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer.policy_version == 1
            assert_is_of(other, prompt, answer)
        return list(answers)

    try:
        run(opened(model, *pair, patience_s=600), after)
    finally:
        pair[0].kill()
        pair[0].start()
        pair[0].wait()
        run(opened(model, pair[1]), lambda policy: policy.load_weights(model, 0))
    journal = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert len(journal) >= 24


def test_requests_wait_for_the_only_server_to_come_back_and_fail_where_it_does_not(vllm: RealVllm, model: Path) -> None:
    async def ask(policy: VllmPolicy) -> None:
        prompt = prompt_of(policy, "Write a long story.")
        asked = [asyncio.create_task(policy.complete(prompt, Sampling(max_tokens=40))) for _ in range(3)]
        await until(policy, lambda load: load.running == 3)
        await asyncio.to_thread(vllm.kill)
        hasty = opened(model, vllm, retries=1)
        started = time.monotonic()
        with pytest.raises(PolicyError):
            await hasty.complete(prompt, GREEDY)
        await hasty.aclose()
        assert time.monotonic() - started < 30
        vllm.start()
        assert all(len(completion.token_ids or ()) > 0 for completion in await asyncio.gather(*asked))

    run(opened(model, vllm, patience_s=1_000, timeout_s=2_000), ask)
