"""Synchronous against asynchronous training with a real vLLM: wall seconds a step, new weights read at each.

SmolLM2-135M is served by the vLLM that `$SKYRL_VLLM` names; `scripts/vllm-cpu` needs no GPU. The training step is
a pause, as long as the rollouts take when nothing else goes on: as where trainer and server have hardware of their
own. Weights are really written, completions really stopped, and go on under the new weights.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from benchmarks.asynchronous import Work, compare, seconds_a_step
from skyrl_gym.background import BackgroundLoop
from skyrl_gym.policy import load_renderer, resolve_model
from skyrl_gym.policy.serving import served
from skyrl_gym.trainer.served import ServedPolicy

WORK = Work(steps=6, groups=2, size=4, turns=3, max_tokens=64)


def main() -> None:
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as held:
        folder = Path(held) / "model"
        shutil.copytree(resolve_model("smollm2-135m"), folder)
        weights = AutoModelForCausalLM.from_pretrained(folder).state_dict()
        renderer = load_renderer(str(folder))
        with served(str(folder), print) as address:

            def open_policy(loop: BackgroundLoop) -> ServedPolicy:
                return ServedPolicy(address.partition("#")[0], folder, renderer, loop)

            def took(staleness: int, step_s: float) -> float:
                return seconds_a_step(WORK, staleness, step_s, open_policy, weights)

            rollouts = took(0, 0.0)
            print(f"{WORK.groups * WORK.size} trajectories of {WORK.turns} turns: {rollouts:.2f} s of rollouts")
            compare(rollouts, rollouts, {staleness: took(staleness, rollouts) for staleness in (0, 1, 2)})


if __name__ == "__main__":
    main()
