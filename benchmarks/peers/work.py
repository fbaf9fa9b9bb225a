"""The work that is the same for all, and how it is measured. Imports nothing that isn't Python's own.

An episode has `TURNS` turns. In each the policy says `SAYS` and calls the tool `nothing` with `{"n": 3}`; the tool
gives `RESULT` back. The policy answers at once; where the framework runs episodes as coroutines it gives way first, so
that all of them are really under way together. Each episode ends with a reward of 1.
"""

import json
import resource
import sys
import time

TURNS = 10
PROMPT = "Do nothing, ten times."
SAYS = "I call the tool that does nothing, once more."
ARGUMENTS = {"n": 3}
CALL = '<tool_call>\n{"name": "nothing", "arguments": {"n": 3}}\n</tool_call>'
RESULT = "nothing was done. " * 12
WARM = 8


def measure(play):
    """Calls `play(episodes, at_once)`, which gives the number of turns taken, and prints what it took."""
    episodes, at_once = int(sys.argv[1]), int(sys.argv[2])
    play(WARM, min(WARM, at_once))
    before, cpu, wall = _resident_mb(), time.process_time(), time.perf_counter()
    turns = play(episodes, at_once)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    assert turns == episodes * TURNS, f"{turns} turns in place of {episodes * TURNS}"
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    print(
        json.dumps(
            {
                "cpu_us_a_turn": cpu / turns * 1e6,
                "wall_us_a_turn": wall / turns * 1e6,
                "mb_an_episode": (peak_mb - before) / at_once,
                "peak_mb": peak_mb,
            }
        )
    )


def _resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6
