"""`skyrl play ENV`: a person in the model's place."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from skyrl_gym.cli.settings import SetOption, parse_settings
from skyrl_gym.policy.human import HumanPolicy
from skyrl_gym.registration import make_env
from skyrl_gym.rollout import Deadlines, RolloutLimits, RolloutRequest, Runner, Trajectory
from skyrl_gym.tasks import Task

EXAMPLES = """
skyrl play skyrl/memory-v0
skyrl play skyrl/memory-v0 --task 3 --set document_words=400
skyrl play skyrl/swe-v0 --seed 7
"""
NO_HURRY_S = 7 * 24 * 3_600.0


def run(
    env: Annotated[str, typer.Argument(metavar="ENV", help="An id of `skyrl list`.")],
    task: Annotated[str | None, typer.Option(help="A task's id or its number.")] = None,
    seed: Annotated[int, typer.Option(help="Draws the task where none is named.")] = 0,
    settings: SetOption = None,
) -> None:
    """Answer one task yourself, at the terminal."""
    kwargs = parse_settings(settings)
    console = Console(highlight=False)
    console.print("Type a call; :help shows how, :tools what there is, :quit leaves.\n", style="dim")
    chosen = _choose(env, kwargs, task, seed)
    console.print(_ending(asyncio.run(_play(env, kwargs, chosen, HumanPolicy(console)))))


def _choose(env_id: str, kwargs: dict[str, Any], wanted: str | None, seed: int) -> Task:
    tasks = make_env(env_id, **kwargs).tasks
    if wanted is None:
        return tasks.shuffle(seed)[0]
    if wanted.isdecimal() and int(wanted) < len(tasks):
        return tasks[int(wanted)]
    return tasks.find(wanted)


async def _play(env_id: str, kwargs: dict[str, Any], task: Task, policy: HumanPolicy) -> Trajectory:
    deadlines = Deadlines(policy_s=NO_HURRY_S, episode_s=NO_HURRY_S)
    runner = Runner(policy, env_kwargs=kwargs, limits=RolloutLimits(retries=0), deadlines=deadlines)
    played = [trajectory async for trajectory in runner.run([RolloutRequest(env_id, task, task.id)])]
    return played[0]


def _ending(trajectory: Trajectory) -> str:
    if trajectory.reward is None:
        why = trajectory.error.message if trajectory.error else trajectory.stop_reason.value
        return f"\n[bold]Not graded[/]: {escape(why)}"
    metrics = "".join(f"\n  {escape(name)} {value:g}" for name, value in trajectory.metrics.items())
    turns = f"{len(trajectory.turns)} turn{'s' * (len(trajectory.turns) != 1)}"
    return f"\n[bold]Reward {trajectory.reward:g}[/] after {turns} ({trajectory.stop_reason.value}){metrics}"
