"""verifiers 0.1.14: its `ToolEnv` with a client that answers at once, episodes gathered under a semaphore.

Its loop runs in this process. Version 0.4.0 has it no more: there each rollout is a program of its own, which speaks
HTTP with the framework. `run_rollout` is called rather than `generate`, which sums up all results after each.
"""

import asyncio

import verifiers as vf
from datasets import Dataset
from verifiers.clients import Client
from verifiers.types import Response, ResponseMessage, ToolCall
from work import PROMPT, RESULT, SAYS, TURNS, measure


class Stand(Client):
    """Answers at once, in the framework's own types."""

    def setup_client(self, config):
        return None

    async def to_native_tool(self, tool):
        return tool

    async def to_native_prompt(self, messages):
        return messages, {}

    async def get_native_response(self, prompt, model, sampling_args, tools=None, **kwargs):
        await asyncio.sleep(0)
        call = ToolCall(id=f"call_{len(prompt)}", name="nothing", arguments='{"n": 3}')
        message = ResponseMessage(content=SAYS, tool_calls=[call], finish_reason="tool_calls", is_truncated=False)
        return Response(id="r", created=0, model=model, message=message)

    async def raise_from_native_response(self, response):
        pass

    async def from_native_response(self, response):
        return response

    async def close(self):
        pass


async def nothing(n: int) -> str:
    """Does nothing.

    Args:
        n: how often.
    """
    return RESULT


def reward(completion, **_):
    return 1.0


async def play(episodes, at_once):
    rows = Dataset.from_list([{"question": PROMPT, "answer": ""}])
    env = vf.ToolEnv(tools=[nothing], max_turns=TURNS, dataset=rows, rubric=vf.Rubric(funcs=[reward]))
    given = env.get_dataset()[0]
    client, gate = Stand(None), asyncio.Semaphore(at_once)

    async def episode(number):
        async with gate:
            return await env.run_rollout(
                {**given, "example_id": number}, client, "none", {}, state_columns=["trajectory"]
            )

    found = await asyncio.gather(*(episode(number) for number in range(episodes)))
    assert all(output["reward"] == 1.0 for output in found)
    return sum(len(output["trajectory"]) for output in found)


measure(lambda episodes, at_once: asyncio.run(play(episodes, at_once)))
