"""A training that takes seconds: an environment, a model that soon ends its answers, and a recipe, in one folder.

Where SAY_IS_HELD_BY names a file, no held-out task begins once the file is there.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from skyrl_gym.chat.testing import tiny_tokenizer
from skyrl_gym.rollout import Trajectory, read_journal
from skyrl_gym.trainer.testing import tiny_model

ENVIRONMENT = '''
"""An environment for tests: say something; its length is the reward."""
import os
import time

from skyrl_gym import TaskSet, TextEnv, finish, tool


class SayEnv(TextEnv):
    """Say something."""

    def load_tasks(self, split):
        return TaskSet.from_rows([{"id": f"{split}{i}", "image": "nowhere.example/say"} for i in range(5)])

    def setup(self, task):
        if task.id.startswith("test") and os.path.exists(os.environ.get("SAY_IS_HELD_BY", "")):
            time.sleep(300)
        return f"Say {task.id}."

    @tool
    def nothing(self):
        """Does nothing."""
        return "ok"

    def respond(self, message):
        self.said = message.text
        return finish()

    def grade(self):
        return float(len(getattr(self, "said", "")) % 4)
'''
STEPS, GROUPS, SIZE = 6, 2, 4
END = 2  # the token that ends an answer


def write_place(folder: Path) -> None:
    """The model's chance of ending is the same after any token, so that answers differ in length and in reward."""
    model, tokenizer = tiny_model(), tiny_tokenizer()
    assert tokenizer.eos_token_id == END
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] += 0.2
        model.lm_head.weight[END, 0] = 0.65
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "say_for_test.py").write_text(ENVIRONMENT)
    (folder / "registry.yaml").write_text("say-v0: {entry_point: 'say_for_test:SayEnv', summary: Says.}\n")
    recipe = {
        "name": "r",
        "model": str(folder / "model"),
        "env": {"id": "say-v0"},
        "rollout": {"max_tokens": 12},
        "train": {
            "max_steps": STEPS, "prompts_per_step": GROUPS, "num_generations": SIZE, "learning_rate": 1e-3,
            "per_device_train_batch_size": 4, "save_steps": 2, "bf16": False, "refill_rounds": 1,
        },
        # A multiple neither of the batch nor of the processes.
        "eval": {"tasks": 3, "samples": 1},
    }  # fmt: skip
    (folder / "recipe.yaml").write_text(json.dumps(recipe))


def run(place: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A Python program in this folder."""
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", "TERM": "dumb"}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=place, timeout=400,
        env={**os.environ, **quiet, **environment},
    )  # fmt: skip


def trajectories(run_dir: Path) -> list[Trajectory]:
    """Those of all processes."""
    return [t for path in sorted(run_dir.glob("trajectories*.jsonl")) for t in read_journal(path)]
