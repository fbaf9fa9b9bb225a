"""The exports in the hands of the packages they are for, each installed into an environment of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skyrl_gym.evaluate import Run
from skyrl_gym.export import export_run
from skyrl_gym.trainer.samples import samples_of

pytestmark = pytest.mark.slow


def in_an_environment(folder: Path, requirements: list[str], code: str, *arguments: str, bare: str = "") -> Any:
    """The JSON that a program prints, run where these packages are installed beside those that are here.

    `bare` is one more, without what it depends on.
    """
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "here.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")) + "\n")
    for words in filter(None, (requirements, ["--no-deps", bare] if bare else [])):
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words]
        installed = subprocess.run(install, capture_output=True, text=True, timeout=1_200, check=False)
        if installed.returncode:
            pytest.skip(f"{' '.join(words)} can't be installed here: {installed.stderr.strip()[-300:]}")
    ran = subprocess.run(
        [str(python), "-c", code, *arguments], capture_output=True, text=True, timeout=600, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3_000:]
    return json.loads(ran.stdout.splitlines()[-1])


def sequences(run: Run) -> list[list[int]]:
    """The ids of every training sequence of the run."""
    judged = [t for t in run.trajectories() if t.reward is not None and all(turn.transition for turn in t.turns)]
    return sorted([*s.prompt_ids, *s.completion_ids] for t in judged for s in samples_of(t, 0, 0.0))


def test_tinker_takes_every_datum(run: Run, tmp_path: Path) -> None:
    code = """
import json, sys
from tinker import types
found = []
for line in open(sys.argv[1]):
    row = json.loads(line)
    datum = types.Datum(types.ModelInput.from_ints(row["tokens"]), loss_fn_inputs=row["loss_fn_inputs"])
    inputs = datum.loss_fn_inputs
    assert inputs["target_tokens"].dtype == "int64" and inputs["advantages"].dtype == "float32"
    assert {tensor.shape[0] for tensor in inputs.values()} == {datum.model_input.length}
    found.append([*datum.model_input.to_ints(), inputs["target_tokens"].tolist()[-1]])
print(json.dumps(sorted(found)))
"""
    path = export_run(run, "tinker").path
    assert in_an_environment(tmp_path / "env", ["tinker"], code, str(path)) == sequences(run)


def test_verifiers_reads_the_file_as_its_own(run: Run, tmp_path: Path) -> None:
    code = """
import json, pathlib, sys
from verifiers.v1 import WireTrace
from verifiers.v1.utils.trace_store import read_episodes
found, rewards = [], 0.0
for episode in read_episodes(pathlib.Path(sys.argv[1]), WireTrace):
    (trace,) = episode.traces
    rewards += trace.reward
    found += [branch.token_ids for branch in trace.branches if branch.token_ids]
print(json.dumps([sorted(found), rewards]))
"""
    path = export_run(run, "verifiers").path
    read = in_an_environment(tmp_path / "env", ["verifiers>=0.4"], code, str(path.parent))
    assert read == [sequences(run), sum(t.reward or 0.0 for t in run.trajectories())]


def test_verl_makes_a_data_proto_of_it(run: Run, tmp_path: Path) -> None:
    code = """
import json, sys
import numpy as np
import torch
from verl import DataProto
arrays = np.load(sys.argv[1])
tensors = {k: torch.from_numpy(arrays[k]) for k in arrays if not k.startswith("non_tensor/")}
others = {k.removeprefix("non_tensor/"): arrays[k].astype(object) for k in arrays if k.startswith("non_tensor/")}
data = DataProto.from_dict(tensors=tensors, non_tensors=others)
data.check_consistency()
width = data.batch["prompts"].shape[1]
seen = data.batch["attention_mask"].bool()
ids = [row[mask].tolist() for row, mask in zip(data.batch["input_ids"], seen)]
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
advantages, _ = compute_grpo_outcome_advantage(
    data.batch["rm_scores"], data.batch["response_mask"], data.non_tensor_batch["uid"]
)
assert advantages.shape == data.batch["responses"].shape and advantages.isfinite().all()
print(json.dumps(sorted(ids)))
"""
    path = export_run(run, "verl").path
    needed = ["tensordict", "ray", "omegaconf", "hydra-core", "codetiming", "torchdata", "orjson"]
    assert in_an_environment(tmp_path / "env", needed, code, str(path), bare="verl") == sequences(run)


def test_skyrl_train_accepts_the_batch(run: Run, tmp_path: Path) -> None:
    if sys.version_info < (3, 12):
        pytest.skip("skyrl needs Python 3.12")
    code = """
import json, sys
from skyrl.train.generators.base import GeneratorOutput, TrajectoryID
from skyrl.train.utils.trainer_utils import validate_generator_output
out = json.load(open(sys.argv[1]))
assert set(out) <= set(GeneratorOutput.__annotations__)
out["trajectory_ids"] = [TrajectoryID(**identity) for identity in out["trajectory_ids"]]
validate_generator_output(len(out["response_ids"]), out, step_wise=True)
print(json.dumps(sorted(p + r for p, r in zip(out["prompt_token_ids"], out["response_ids"]))))
"""
    path = export_run(run, "skyrl-train").path
    assert in_an_environment(tmp_path / "env", [], code, str(path), bare="skyrl>=0.3") == sequences(run)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")  # TRL uses it itself
def test_trl_trains_on_the_rows(run: Run, tmp_path: Path, make: Any) -> None:
    torch = pytest.importorskip("torch")
    trl = pytest.importorskip("trl")
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM

    from skyrl_gym.chat.testing import tiny_tokenizer

    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    known = next(s for s in range(100) if all(t.transition.logprobs for t in make.drawn(s).turns))
    recorded = make.run(tmp_path / "known", [make.drawn(known, sample=i, reward=float(i)) for i in range(4)])
    rows = [json.loads(line) for line in export_run(recorded, "trl").path.read_text().splitlines()][:4]
    given: list[float] = []

    def rollout(prompts: Any, trainer: Any) -> dict[str, Any]:
        return {name: [row[name] for row in rows] for name in rows[0]}

    def reward(completions: Any, reward: list[float], **kwargs: Any) -> list[float]:
        given.extend(reward)
        return reward

    tiny = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=400, num_key_value_heads=2, **tiny))
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    config = trl.GRPOConfig(
        output_dir=str(tmp_path / "out"), per_device_train_batch_size=4, num_generations=4, max_steps=1, use_cpu=True,
        bf16=False, learning_rate=1.0, optim="sgd", report_to="none", save_strategy="no",
        lr_scheduler_type="constant",
    )  # fmt: skip
    trainer = trl.GRPOTrainer(
        model=model, args=config, processing_class=tiny_tokenizer(), reward_funcs=reward, rollout_func=rollout,
        train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "q"}]}] * 4),
    )  # fmt: skip
    trainer.train()
    after = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    assert given == [row["reward"] for row in rows]
    assert bool((before != after).any())


def test_trl_reads_the_messages(run: Run) -> None:
    datasets = pytest.importorskip("datasets")
    from skyrl_gym.chat.testing import tiny_tokenizer

    path = export_run(run, "sft").path
    table = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(path.parent / "cache"))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    texts = [tiny_tokenizer("chatml_tools").apply_chat_template(row["messages"], tokenize=False) for row in table]
    assert texts == [
        tiny_tokenizer("chatml_tools").apply_chat_template(line["messages"], tokenize=False) for line in lines
    ]
