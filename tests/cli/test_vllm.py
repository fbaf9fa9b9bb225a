"""`skyrl eval --serve` with a real vLLM on the CPU (`make test-vllm`)."""

import json
import os
from pathlib import Path

import pytest

from skyrl_gym.cli import main
from tests.policy.real_vllm import NEEDED, SCRIPT

pytestmark = NEEDED


def test_an_evaluation_starts_a_server_and_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its seeded prompts together are longer than what this server reads at once."""
    monkeypatch.setenv("SKYRL_VLLM", str(SCRIPT))
    mark = ("--seed", str(os.getpid()))
    served = f"smollm2-135m {' '.join(mark)}"
    words = ["--serve", served, "--tasks", "4", "-n", "2", "--max-tokens", "48", "--out", str(tmp_path / "run")]
    monkeypatch.setattr("sys.argv", ["skyrl", "eval", "skyrl/memory-v0", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    lines = [json.loads(line) for line in (tmp_path / "run" / "trajectories.jsonl").read_text().splitlines()]
    sampled = [turn["transition"] for line in lines for turn in line.get("turns", ())]
    assert len(lines) == 8 and sampled and all(sampled)
    assert all(0 < len(step["sampled_ids"]) == len(step["logprobs"]) for step in sampled)
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and "\0".join(mark).encode() in _words(pid)]


def _words(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
