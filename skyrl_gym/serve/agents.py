"""Running black-box agents against a gateway: one process an episode."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import httpx

from skyrl_gym.errors import ConfigError, StopReason
from skyrl_gym.tasks import Task

__all__ = ["run_agents"]

TAIL = 2_000  # characters kept of what a failed agent wrote


async def run_agents(
    url: str,
    command: str,
    tasks: Iterable[Task],
    samples: int,
    *,
    concurrency: int,
    agent_s: float,
    token: str | None = None,
    on_done: Callable[[dict[str, Any]], None] = lambda result: None,
) -> None:
    """Plays `samples` episodes of each task, so many at once.

    The command is a shell's. It finds the model in `OPENAI_BASE_URL` and `OPENAI_API_KEY`, the episode in
    `SKYRL_SESSION_URL`, and the task as JSON on its standard input: `task_id`, `messages`, `tools`. It may
    take `agent_s` seconds. One that fails before it has asked the model anything is excluded, with what it
    wrote as the error; any other is graded as it stands.

    Raises:
        ConfigError: the gateway refused to open an episode.
    """
    headers = {"authorization": f"Bearer {token}"} if token else {}
    requests = iter([task for task in tasks for _ in range(samples)])
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=None) as client:

        async def work() -> None:
            for task in requests:
                on_done(await _play(client, command, task, agent_s))

        async with asyncio.TaskGroup() as workers:
            for _ in range(concurrency):
                workers.create_task(work())


async def _play(client: httpx.AsyncClient, command: str, task: Task, agent_s: float) -> dict[str, Any]:
    opened = await client.post("/sessions", json={"task": {**task.data, "id": task.id}})
    if opened.is_error:
        raise ConfigError(f"the gateway opened no episode of {task.id}: {opened.text[:300]}")
    session = opened.json()
    ending = await _run(command, session, agent_s)
    finished = await client.post(f"{session['url']}/finish", json=ending)
    return dict(finished.json()) | {"task_id": task.id}


async def _run(command: str, session: dict[str, Any], agent_s: float) -> dict[str, Any]:
    """Runs one agent to its end and says how it ended."""
    given = {key: session[key] for key in ("task_id", "messages", "tools")}
    process = await asyncio.create_subprocess_shell(
        command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        env={
            **os.environ,
            "OPENAI_BASE_URL": session["base_url"],
            "OPENAI_API_KEY": session["session"],
            "SKYRL_SESSION_URL": session["url"],
        },
    )
    try:
        async with asyncio.timeout(agent_s):
            _, wrote = await process.communicate(json.dumps(given).encode())
    except TimeoutError:
        return {"stop_reason": StopReason.EPISODE_TIMEOUT}
    finally:
        # The whole group: an agent may have started others.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if process.returncode:
        said = wrote.decode(errors="replace").strip()[-TAIL:]
        return {"stop_reason": StopReason.DONE, "failure": f"the agent exited with {process.returncode}: {said}"}
    return {"stop_reason": StopReason.DONE}
