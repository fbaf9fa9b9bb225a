"""Weights out of a trained model, whatever it is wrapped in; the policies that take them."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from skyrl_gym.background import BackgroundLoop
from skyrl_gym.chat import Renderer
from skyrl_gym.chat.testing import tiny_tokenizer
from skyrl_gym.errors import ConfigError
from skyrl_gym.policy import Completion, Prompt, Sampling, ScriptedPolicy
from skyrl_gym.trainer.models import check_policy, make_policy, save_model
from skyrl_gym.trainer.recipe import parse_recipe
from skyrl_gym.trainer.served import ServedPolicy
from skyrl_gym.trainer.weights import plain_weights, write_weights

pytestmark = pytest.mark.filterwarnings("default::FutureWarning")
IDS = torch.tensor([[1, 5, 9, 33]])


def adapted(tools: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(tools.tiny_model(), LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    return model


def test_adapters_are_added_into_the_plain_weights_and_the_model_is_not_touched(tools: Any) -> None:
    model, plain = adapted(tools), tools.tiny_model(seed=5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    weights = plain_weights(model)
    assert set(weights) == set(plain.state_dict())
    plain.load_state_dict(dict(weights))
    with torch.no_grad():
        assert torch.allclose(plain(IDS).logits, model(IDS).logits, atol=1e-4)
        assert not torch.allclose(plain(IDS).logits, tools.tiny_model()(IDS).logits, atol=1e-1)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("wrap", [lambda tools: tools.tiny_model(), adapted], ids=["plain", "lora"])
def test_a_saved_model_is_a_plain_folder(tmp_path: Path, tools: Any, wrap: Any) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = wrap(tools)
    save_model(model, plain_weights(model), tiny_tokenizer(), tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.dtype == torch.bfloat16
    with torch.no_grad():
        assert torch.allclose(loaded(IDS).logits.float(), model(IDS).logits, atol=0.1, rtol=0.1)
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template


def test_weights_over_the_size_of_a_file_are_spread_over_several(
    tmp_path: Path, tools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyrl_gym.trainer.weights.SHARD_BYTES", 10_000)
    weights = tools.tiny_model().state_dict()
    write_weights(weights, tmp_path)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    assert set(index) == set(weights)
    assert len(set(index.values())) > 2
    assert {path.name for path in tmp_path.glob("*.safetensors")} == set(index.values())
    monkeypatch.undo()
    write_weights(weights, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


class _Without:
    """A policy that leaves out what is asked of it."""

    def __init__(self, renderer: Any, ids: Any) -> None:
        self.name, self.renderer, self._ids = "without", renderer, ids

    async def complete(self, prompt: Prompt, sampling: Sampling) -> Completion:
        return Completion("", token_ids=self._ids)

    async def aclose(self) -> None:
        pass


def test_a_policy_that_cannot_be_trained_with_is_refused_before_anything_is_spent() -> None:
    renderer = Renderer(tiny_tokenizer())
    for policy, says in (
        (ScriptedPolicy(["a"]), "scripted has no renderer"),
        (_Without(renderer, None), "gives no token ids"),
        (_Without(renderer, (1,)), "gives no logprobs, and train.importance_correction needs them"),
    ):
        with pytest.raises(ConfigError, match=says):
            asyncio.run(check_policy(policy, needs_logprobs=True))
    asyncio.run(check_policy(_Without(renderer, (1,)), needs_logprobs=False))


class _Vllm(BaseHTTPRequestHandler):
    """What of vLLM's server is spoken to."""

    told: ClassVar[list[tuple[str, Any]]] = []
    development: ClassVar[bool] = True

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.told.append((self.path, body))
        known = self.path == "/v1/completions" or self.development
        answer = {"choices": [{"text": "a", "token_ids": [7, 2], "logprobs": {"token_logprobs": [-0.5, -1.0]}}]}
        data = json.dumps(answer).encode()
        self.send_response(200 if known else 404)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def loop() -> Iterator[BackgroundLoop]:
    found = BackgroundLoop("test")
    yield found
    found.close()


@pytest.fixture
def server() -> Iterator[str]:
    _Vllm.told, _Vllm.development = [], True
    found = ThreadingHTTPServer(("127.0.0.1", 0), _Vllm)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{found.server_port}/v1"
    found.shutdown()
    found.server_close()


def test_a_server_reads_the_new_weights_from_its_folder(
    tmp_path: Path, tools: Any, server: str, loop: BackgroundLoop
) -> None:
    policy = ServedPolicy(server, tmp_path, Renderer(tiny_tokenizer()), loop)
    policy.load_weights(tools.tiny_model(seed=3).state_dict(), 4)
    reload = {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path)}}
    assert _Vllm.told == [
        ("/pause?mode=abort", {}), ("/collective_rpc", reload), ("/reset_prefix_cache", {}), ("/resume", {}),
    ]  # fmt: skip
    assert (tmp_path / "model.safetensors").is_file()

    async def ask() -> Completion:
        answer = await policy.complete(Prompt((), (), (1, 5)), Sampling(max_tokens=2))
        await policy.aclose()
        return answer

    answer = loop.run(ask())
    assert (answer.token_ids, answer.logprobs, answer.policy_version) == ((7, 2), (-0.5, -1.0), 4)
    assert _Vllm.told[-1][1]["prompt"] == [1, 5]


def test_of_several_processes_all_halt_before_one_has_the_weights_read_and_wait_until_they_are(
    tmp_path: Path, tools: Any, server: str, loop: BackgroundLoop
) -> None:
    barrier, events = threading.Barrier(2, timeout=30), []

    def policy(writes: bool) -> ServedPolicy:
        def meet() -> None:
            events.append([path for path, _ in _Vllm.told])
            barrier.wait()

        return ServedPolicy(server, tmp_path, Renderer(tiny_tokenizer()), loop, writes=writes, meet=meet)

    first, second = policy(True), policy(False)
    other = threading.Thread(target=second.load_weights, args=(tools.tiny_model().state_dict(), 4))
    other.start()
    first.load_weights(tools.tiny_model().state_dict(), 4)
    other.join()
    assert (first.version, second.version) == (4, 4)
    told = [path for path, _ in _Vllm.told]
    assert told.count("/collective_rpc") == 1 and told.count("/pause?mode=abort") == 2
    assert told.index("/collective_rpc") > max(i for i, path in enumerate(told) if path.startswith("/pause"))
    assert told.index("/reset_prefix_cache") < min(i for i, path in enumerate(told) if path == "/resume")
    assert len(events) == 4
    loop.run(first.aclose())
    loop.run(second.aclose())


def test_a_server_without_its_development_endpoints_is_named(
    tmp_path: Path, tools: Any, server: str, loop: BackgroundLoop
) -> None:
    _Vllm.development = False
    policy = ServedPolicy(server, tmp_path, Renderer(tiny_tokenizer()), loop)
    with pytest.raises(ConfigError, match=r"refused .*404.*VLLM_SERVER_DEV_MODE=1"):
        policy.load_weights(tools.tiny_model().state_dict(), 1)
    loop.run(policy.aclose())


def test_the_servers_folder_is_not_the_model_that_is_trained(tmp_path: Path, tools: Any, loop: BackgroundLoop) -> None:
    model, tokenizer = tools.tiny_model(), tiny_tokenizer()
    model.save_pretrained(tmp_path)
    for folder in (None, str(tmp_path), str(tmp_path / "nowhere")):
        recipe = parse_recipe(
            {
                "name": "n",
                "model": str(tmp_path),
                "env": {"id": "e"},
                "rollout": {"server": "http://localhost:1/v1", "server_folder": folder},
            }
        )
        with pytest.raises(ConfigError, match="server_folder is the model folder that the server was started on"):
            make_policy(recipe, model, tokenizer, loop, writes=True)


SHARDED = """
import importlib.util, os, sys, warnings
warnings.simplefilter("ignore")
import torch
spec = importlib.util.spec_from_file_location("shared", sys.argv[1])
shared = importlib.util.module_from_spec(spec); spec.loader.exec_module(shared)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from skyrl_gym.trainer.weights import plain_weights
mesh = init_device_mesh("cpu", (2,))
model, whole = shared.tiny_model(), shared.tiny_model().state_dict()
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
assert any(value.to_local().numel() < value.numel() for value in model.state_dict().values())
weights = plain_weights(model)
assert all(torch.equal(weights[name], whole[name]) for name in whole), "not the same"
assert set(weights) == set(whole)
print(f"RANK {os.environ['RANK']} WHOLE")
torch.distributed.destroy_process_group()
"""


def test_weights_that_fsdp2_has_sharded_are_put_together_on_every_process(tmp_path: Path) -> None:
    script = tmp_path / "sharded.py"
    script.write_text(SHARDED)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0", "--standalone"]
    done = subprocess.run(
        [*launch, str(script), str(Path(__file__).parent / "conftest.py")],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=110,
    )  # fmt: skip
    assert "RANK 0 WHOLE" in done.stdout and "RANK 1 WHOLE" in done.stdout, done.stderr[-3_000:]
