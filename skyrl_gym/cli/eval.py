"""`skyrl eval ENV`: how well a model does."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from skyrl_gym.cli.boundary import keeping
from skyrl_gym.cli.display import progress_display
from skyrl_gym.cli.runs import ensure_judged, new_folder, print_results
from skyrl_gym.cli.settings import SetOption, parse_settings
from skyrl_gym.errors import ConfigError
from skyrl_gym.evaluate import Summary, evaluate
from skyrl_gym.policy import Policy, Sampling, open_policy
from skyrl_gym.progress import OnProgress, Progress
from skyrl_gym.registration import make_env
from skyrl_gym.rollout import RolloutLimits

EXAMPLES = """
skyrl eval skyrl/memory-v0 --model smollm2-135m --tasks 20 --set document_words=60 --max-tokens 64
skyrl eval skyrl/swe-v0 --model http://localhost:8000/v1#my-model -n 4 --k 1,4
skyrl eval skyrl/memory-v0 --model runs/quickstart/model --out runs/memory    # goes on where it stopped
"""


def run(
    env: Annotated[str, typer.Argument(metavar="ENV", help="An id of `skyrl list`.")],
    model: Annotated[
        str, typer.Option(help="A folder, a hub id, smollm2-135m, or URL#MODEL (the key in $SKYRL_API_KEY).")
    ],
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, help="Trajectories of each task.")] = 1,
    tasks: Annotated[int | None, typer.Option(min=1, help="Only the first N tasks.")] = None,
    split: Annotated[str, typer.Option(help="Which tasks.")] = "test",
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one answer.")] = 512,
    max_context: Annotated[int | None, typer.Option(min=1, help="Tokens of a prompt and its answer.")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the likeliest token.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at once.")] = 32,
    k: Annotated[str | None, typer.Option(metavar="K,K", help="For pass@k; by default 1, 2, 4 ... up to -n.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; one that exists is completed.")] = None,
    settings: SetOption = None,
) -> None:
    """Evaluate a model on an environment.

    Prints the mean reward and pass@k with 95 % intervals, and writes trajectories, summary and an HTML report.
    """
    kwargs = {**parse_settings(settings), "split": split}
    chosen = make_env(env, **kwargs).tasks
    folder = out or new_folder(Path("runs"), "eval", env, Path(model.partition("#")[2] or model).name)
    evaluation: dict[str, Any] = {
        "tasks": chosen if tasks is None else chosen.take(tasks),
        "samples": samples,
        "out_dir": folder,
        "env_kwargs": kwargs,
        "sampling": Sampling(temperature, max_tokens=max_tokens, seed=seed),
        "limits": RolloutLimits(live=concurrency, max_context=max_context),
        "ks": _parse_ks(k, samples),
    }
    with keeping(folder, f"; --out {folder} goes on from there"), progress_display() as show:
        show(Progress("load", 0, 0, message=model))
        policy = open_policy(model, api_key=os.environ.get("SKYRL_API_KEY"), dialect=kwargs.get("dialect", "hermes"))
        summary = asyncio.run(_evaluate(env, policy, evaluation, show))
    _finish(summary, folder)


async def _evaluate(env_id: str, policy: Policy, evaluation: dict[str, Any], show: OnProgress) -> Summary:
    try:
        return await evaluate(env_id, policy, **evaluation, on_progress=show)
    finally:
        await policy.aclose()


def _finish(summary: Summary, folder: Path) -> None:
    from skyrl_gym.evaluate.report import write_report

    print_results(Console(), {summary.policy: summary}, write_report(folder))
    ensure_judged(summary)


def _parse_ks(text: str | None, samples: int) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        ks = tuple(sorted({int(word) for word in text.split(",")}))
    except ValueError:
        raise ConfigError(f"--k takes numbers like 1,4; got {text!r}") from None
    if not 1 <= ks[0] <= ks[-1] <= samples:
        raise ConfigError(f"--k takes numbers from 1 to -n (here {samples}); got {text}")
    return ks
