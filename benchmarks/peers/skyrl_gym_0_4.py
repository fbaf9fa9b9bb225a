"""skyrl-gym 0.4.0: its `BaseTextEnv` and `ToolGroup`. The package has classes and no loop, so there are two.

By default environments are stepped in turn from one thread: the least it can cost, with nothing under way together.
"threads" as third argument: each episode is a coroutine whose `init`, `step` and `close` run in a pool of 32 threads,
which is how SkyRL's own generator drives them by default; its tokenizing is left out. The environment parses the reply
and keeps the history as the package's own `SearchEnv` does; here the call is JSON, as for everyone.
"""

import asyncio
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from skyrl_gym.tools.core import ToolGroup, tool
from work import CALL, PROMPT, RESULT, SAYS, TURNS, measure

CALLS = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


class Nothing(ToolGroup):
    def __init__(self):
        super().__init__("Nothing")

    @tool
    def nothing(self, n):
        return RESULT


class NoOp(BaseTextEnv):
    def __init__(self):
        super().__init__()
        self.max_turns = TURNS
        self.init_tool_groups([Nothing()])
        self.chat_history = []

    def step(self, action):
        self.turns += 1
        self.chat_history.append({"role": "assistant", "content": action})
        call = json.loads(CALLS.search(action).group(1))
        done = self.turns >= self.max_turns
        group = self.tool_to_toolgroup[call["name"]]
        observation = {"role": "user", "content": self._execute_tool(group, call["name"], call["arguments"].values())}
        self.chat_history.append(observation)
        return BaseTextEnvStepOutput(
            observations=[observation], reward=float(done), done=done, metadata={"tool_name": call["name"]}
        )


def play(episodes, at_once):
    turns = 0
    for first in range(0, episodes, at_once):
        envs = [NoOp() for _ in range(min(at_once, episodes - first))]
        histories = [env.init([{"role": "user", "content": PROMPT}])[0] for env in envs]
        live = list(zip(envs, histories, strict=True))
        while live:
            going_on = []
            for env, history in live:
                action = f"{SAYS} {CALL}"
                output = env.step(action)
                history += [{"role": "assistant", "content": action}, *output["observations"]]
                turns += 1
                if not output["done"]:
                    going_on.append((env, history))
            live = going_on
        for env in envs:
            env.close()
    return turns


async def play_together(episodes, at_once):
    loop, gate = asyncio.get_running_loop(), asyncio.Semaphore(at_once)

    async def episode(threads):
        async with gate:
            env, turns, done = NoOp(), 0, False
            history, _ = await loop.run_in_executor(threads, env.init, [{"role": "user", "content": PROMPT}])
            while not done:
                await asyncio.sleep(0)
                action = f"{SAYS} {CALL}"
                output = await loop.run_in_executor(threads, env.step, action)
                history += [{"role": "assistant", "content": action}, *output["observations"]]
                turns, done = turns + 1, output["done"]
            await loop.run_in_executor(threads, env.close)
            return turns

    with ThreadPoolExecutor(32) as threads:
        return sum(await asyncio.gather(*(episode(threads) for _ in range(episodes))))


if "threads" in sys.argv:
    measure(lambda episodes, at_once: asyncio.run(play_together(episodes, at_once)))
else:
    measure(play)
