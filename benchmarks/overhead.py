"""What a turn and a live episode cost in each framework, for the same no-op work, 1 to 10,000 episodes at once.

CPU of all threads in microseconds a turn, and memory in MB a live episode (peak over what was resident before, so that
it says nothing where few are live). Each figure is a process of its own; `benchmarks/peers` says what each does. Peers
that pin other versions get environments of their own, made on first use in `~/.cache/skyrl-gym/peers`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

PEERS = Path(__file__).parent / "peers"
HOME = Path.home() / ".cache" / "skyrl-gym" / "peers"
SIZES = (1, 64, 1_024, 10_000)
FEWEST = 256  # episodes, however few at once
LIMIT_S = 1_800


@dataclass(frozen=True)
class Peer:
    """A program, its extra arguments, and what pip installs for it (none: this environment)."""

    name: str
    program: str
    arguments: tuple[str, ...] = ()
    needs: str | None = None
    home: str = ""

    def python(self) -> str:
        """The interpreter that has what the peer needs; made on first use."""
        if self.needs is None:
            return sys.executable
        folder = HOME / self.home
        found = folder / "bin" / "python"
        if not found.exists():
            print(f"installing {self.needs} into {folder}", file=sys.stderr, flush=True)
            venv.create(folder, with_pip=True)
            run([str(found), "-m", "pip", "install", "--quiet", self.needs])
        return str(found)


MESSAGES = (
    Peer("skyrl-suite, messages", "ours.py"),
    Peer("by hand (the floor)", "by_hand.py"),
    Peer("skyrl-gym 0.4.0, no loop", "skyrl_gym_0_4.py", needs="skyrl-gym==0.4.0", home="skyrl-gym"),
    Peer("skyrl-gym 0.4.0, threads", "skyrl_gym_0_4.py", ("threads",), "skyrl-gym==0.4.0", "skyrl-gym"),
    Peer("verifiers 0.1.14", "verifiers_0_1.py", needs="verifiers==0.1.14", home="verifiers"),
)
TOKENS = (Peer("skyrl-suite, tokens", "ours.py", ("tokens",)), Peer("TRL", "trl_loop.py"))


class Away(Exception):
    """A peer that can't be installed or run; the text says why."""


def run(command: list[str], settings: dict[str, str] | None = None) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=settings)
    if ran.returncode:
        raise Away((ran.stderr or ran.stdout).strip().splitlines()[-1][:160])
    return ran.stdout


def measure(peer: Peer, at_once: int) -> dict[str, float]:
    """What the peer's program prints."""
    # A peer's environment must not see this package, whose name skyrl-gym shares.
    paths = {"PYTHONPATH": str(PEERS.parents[1])} if peer.needs is None else {}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    sizes = [str(max(FEWEST, at_once)), str(at_once)]
    command = [peer.python(), str(PEERS / peer.program), *sizes, *peer.arguments]
    out = run(command, {**kept, **paths, "OMP_NUM_THREADS": "1"})
    found: dict[str, float] = json.loads(out.splitlines()[-1])
    return found


def table(peers: tuple[Peer, ...], sizes: tuple[int, ...]) -> None:
    """One line a peer and size; the ratio is to the first of the peers."""
    print(f"{'':<24} {'at once':>8} {'CPU us/turn':>12} {'ratio':>6} {'MB/episode':>11} {'peak MB':>8}")
    for at_once in sizes:
        first = None
        for peer in peers:
            try:
                found = measure(peer, at_once)
            except (Away, subprocess.TimeoutExpired) as error:
                print(f"{peer.name:<24} {at_once:>8} not measured: {error}", flush=True)
                continue
            cost = found["cpu_us_a_turn"]
            first = first or cost
            memory = f"{found['mb_an_episode']:>11.3f}" if at_once >= 1_000 else f"{'-':>11}"
            print(
                f"{peer.name:<24} {at_once:>8,} {cost:>12.1f} {cost / first:>6.2f} {memory} {found['peak_mb']:>8.0f}",
                flush=True,
            )


def main(sizes: tuple[int, ...] = SIZES) -> None:
    print(f"load {os.getloadavg()[0]:.1f}")
    for peers in (MESSAGES, TOKENS):
        table(peers, sizes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", type=int, nargs="*", default=SIZES, help="episodes at once")
    main(tuple(parser.parse_args().sizes))
