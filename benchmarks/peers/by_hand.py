"""The floor: coroutines that call the tool's function and keep the messages, with nothing around them."""

import asyncio

from work import ARGUMENTS, PROMPT, RESULT, SAYS, TURNS, measure


async def nothing(n):
    return RESULT


async def episode():
    messages = [{"role": "user", "content": PROMPT}]
    for turn in range(TURNS):
        await asyncio.sleep(0)
        call = {"id": f"call_{turn}", "function": {"name": "nothing", "arguments": dict(ARGUMENTS)}}
        messages.append({"role": "assistant", "content": SAYS, "tool_calls": [call]})
        result = await nothing(**call["function"]["arguments"])
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return messages


async def play(episodes, at_once):
    turns = 0
    for first in range(0, episodes, at_once):
        found = await asyncio.gather(*(episode() for _ in range(min(at_once, episodes - first))))
        turns += sum(len(messages) // 2 for messages in found)
    return turns


measure(lambda episodes, at_once: asyncio.run(play(episodes, at_once)))
