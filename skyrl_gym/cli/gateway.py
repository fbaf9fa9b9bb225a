"""`skyrl gateway ENV`: a model that black-box agents are pointed at, with everything recorded."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from skyrl_gym.cli.boundary import keeping
from skyrl_gym.cli.display import progress_display
from skyrl_gym.cli.runs import ensure_judged, new_folder, print_results
from skyrl_gym.cli.settings import SetOption, parse_settings
from skyrl_gym.errors import ConfigError
from skyrl_gym.evaluate import Run, open_run, summarise
from skyrl_gym.evaluate.runs import JOURNAL, in_use, provenance, write_json
from skyrl_gym.policy import Sampling, in_dialect_of, open_policy
from skyrl_gym.progress import OnProgress, Progress
from skyrl_gym.registration import make_env
from skyrl_gym.rollout import Journal, read_journal

EXAMPLES = """
skyrl gateway skyrl/memory-v0 --model smollm2-135m
skyrl gateway skyrl/memory-v0 --model http://localhost:8000/v1#my-model --agent 'python my_agent.py' --tasks 10 -n 4
"""


def run(
    env: Annotated[str, typer.Argument(metavar="ENV", help="An id of `skyrl list`.")],
    model: Annotated[
        str, typer.Option(help="A folder, a hub id, smollm2-135m, or URL#MODEL (the key in $SKYRL_API_KEY).")
    ],
    agent: Annotated[str | None, typer.Option(help="A command to run for each episode; docs/serving.md.")] = None,
    tasks: Annotated[int | None, typer.Option(min=1, help="With --agent: only the first N tasks.")] = None,
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, help="With --agent: episodes of each task.")] = 1,
    agent_time: Annotated[float, typer.Option(min=0.1, help="With --agent: seconds that it may take.")] = 3_600.0,
    split: Annotated[str, typer.Option(help="Which tasks.")] = "test",
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one answer.")] = 512,
    max_context: Annotated[int | None, typer.Option(min=1, help="Tokens of a prompt and its answer.")] = None,
    max_turns: Annotated[int, typer.Option(min=1, help="Answers of the model in an episode.")] = 200,
    temperature: Annotated[float, typer.Option(min=0.0, help="Whatever the agent asks for.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at once.")] = 8,
    host: Annotated[
        str, typer.Option(help="Where to listen; beyond this machine only with $SKYRL_TOKEN.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 takes a free one.")] = 0,
    out: Annotated[Path | None, typer.Option(help="The run folder; one that exists is added to.")] = None,
    settings: SetOption = None,
) -> None:
    """Let black-box agents play an environment, and record what the model said, token for token.

    Serves OpenAI's protocol. With --agent it runs the agent on each task; without, it waits for agents until it
    is interrupted. Either way a run folder is left that `skyrl view` and `skyrl export` open.
    """
    from skyrl_gym.serve.http import check_host, serve

    token = os.environ.get("SKYRL_TOKEN")
    check_host(host, token)
    kwargs = {**parse_settings(settings), "split": split}
    chosen = make_env(env, **kwargs).tasks
    chosen = chosen if tasks is None else chosen.take(tasks)
    folder = out or new_folder(Path("runs"), "gateway", env, Path(model.partition("#")[2] or model).name)
    console = Console(highlight=False)
    sampling = Sampling(temperature, max_tokens=max_tokens, seed=seed)
    options = {"max_context": max_context, "max_turns": max_turns, "dialect": kwargs.get("dialect", "auto")}
    with keeping(folder), _gateway(env, kwargs, model, sampling, folder, concurrency, token, options) as app:
        if agent is None:
            say = "{} for agents at {}; open an episode with POST /sessions"
            serve(app, host, port, lambda url: console.print(say.format(env, url), markup=False, soft_wrap=True))
        else:
            with progress_display() as show:
                _run_agents(app, (host, port), agent, chosen, samples, concurrency, agent_time, token, show)
    _finish(console, folder, model)


@contextmanager
def _gateway(
    env: str,
    kwargs: dict[str, Any],
    model: str,
    sampling: Sampling,
    folder: Path,
    concurrency: int,
    token: str | None,
    options: dict[str, Any],
) -> Iterator[Any]:
    """The application over a run folder, new or added to."""
    from skyrl_gym.serve.gateway import Gateway
    from skyrl_gym.serve.gateway_server import gateway_app

    with progress_display() as show:
        show(Progress("load", 0, 0, message=model))
        policy = open_policy(model, api_key=os.environ.get("SKYRL_API_KEY"), dialect=options["dialect"])
    kwargs = in_dialect_of(policy, kwargs)
    config = {"env_id": env, "env_kwargs": kwargs, "policy": policy.name, "sampling": asdict(sampling)}
    with in_use(folder):
        done = _begin(folder, config).trajectories()
        with Journal(folder / JOURNAL) as journal:
            gateway = Gateway(env, lambda: make_env(env, **kwargs), policy, sampling, journal, done=done, **options)
            yield gateway_app(gateway, sessions=concurrency, token=token)


def _begin(folder: Path, config: dict[str, Any]) -> Run:
    """Starts a folder, or makes sure that it belongs to this gateway."""
    if not (folder / "run.json").is_file():
        write_json(folder / "run.json", {"kind": "eval", "config": config, "provenance": provenance()})
    held = open_run(folder)
    wanted = json.loads(json.dumps(config))  # as the file has it: tuples are lists
    if differing := [key for key in {**held.config, **wanted} if held.config.get(key) != wanted.get(key)]:
        raise ConfigError(
            f"{folder} holds a run with other settings ({', '.join(differing)}): give another folder, or what its "
            "run.json says"
        )
    return held


def _run_agents(
    app: Any,
    address: tuple[str, int],
    agent: str,
    tasks: Any,
    samples: int,
    concurrency: int,
    agent_s: float,
    token: str | None,
    show: OnProgress,
) -> None:
    from skyrl_gym.serve.agents import run_agents
    from skyrl_gym.serve.http import running

    total, rewards = len(tasks) * samples, list[float | None]()

    def on_done(result: dict[str, Any]) -> None:
        rewards.append(result.get("reward"))
        judged = [reward for reward in rewards if reward is not None]
        show(Progress("agents", len(rewards), total, sum(judged) / len(judged) if judged else None))

    with running(app, *address) as url:
        work = run_agents(
            url, agent, tasks, samples, concurrency=concurrency, agent_s=agent_s, token=token, on_done=on_done
        )
        asyncio.run(work)


def _finish(console: Console, folder: Path, model: str) -> None:
    from skyrl_gym.evaluate.report import write_report

    summary = summarise(read_journal(folder / JOURNAL))
    write_json(folder / "summary.json", summary.to_json())
    print_results(console, {summary.policy or model: summary}, write_report(folder))
    if summary.total:
        ensure_judged(summary)
