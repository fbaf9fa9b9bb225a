"""Evaluations as `skyrl eval` makes them: one, or the entries of a suite one after the other."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import shlex
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from skyrl_gym.cli.boundary import keeping
from skyrl_gym.cli.display import progress_display
from skyrl_gym.cli.needs import missing_needs
from skyrl_gym.cli.runs import ensure_judged, new_folder, print_results
from skyrl_gym.errors import ConfigError, InfraError, SkyRLError
from skyrl_gym.evaluate import Summary, evaluate, open_run, summary_table
from skyrl_gym.evaluate.concurrency import auto_concurrency
from skyrl_gym.evaluate.files import write_json
from skyrl_gym.evaluate.known import KnownPlayer
from skyrl_gym.evaluate.provenance import provenance
from skyrl_gym.evaluate.spec import EvalSpec, images_of, note_images, write_provenance
from skyrl_gym.evaluate.spending import Caps, Prices
from skyrl_gym.policy import Policy, ScriptedPolicy, open_policy
from skyrl_gym.policy.serving import served
from skyrl_gym.probes import GOLD
from skyrl_gym.progress import OnProgress, Progress
from skyrl_gym.registration import make_env, registered
from skyrl_gym.rollout import RolloutLimits
from skyrl_gym.sandbox.engine import image_digests

__all__ = ["Options", "evaluate_one", "evaluate_suite"]

SERVED = "vllm:"
PROBE = "probe:"
SCRIPTED = "scripted:"


@dataclass(frozen=True)
class Options:
    """What an evaluation may take, which is no part of its result. `concurrency` None: what fits here."""

    concurrency: int | None
    caps: Caps
    prices: Prices | None
    retry_excluded: bool
    min_judged: float


def evaluate_one(
    spec: EvalSpec, out: Path | None, options: Options, console: Console, depended_on: Mapping[str, Any] | None = None
) -> None:
    """Evaluates, prints, writes the report.

    Args:
        depended_on: of the evaluation that this one repeats.

    Raises:
        InfraError: too little could be judged.
        ConfigError: the tasks are others than those of the repeated evaluation.
    """
    make_env(spec.env, **spec.kwargs).tasks  # noqa: B018 - what is wrong with them is told before anything is made
    folder = out or new_folder(Path("runs"), "eval", spec.env, _short(spec.model))
    with keeping(folder, f"; --out {folder} goes on from there"), progress_display() as show, ExitStack() as stack:
        model = _started(spec.model, stack, show)
        summary = asyncio.run(_evaluate(spec, model, folder, options, show, depended_on or {}))
    for note in _changes(folder, depended_on or {}):
        console.print(note, style="yellow", markup=False, soft_wrap=True)
    _print_one(summary, folder, console)
    ensure_judged(summary, options.min_judged)


def evaluate_suite(
    title: str, plan: Mapping[str, EvalSpec], out: Path | None, options: Options, console: Console
) -> None:
    """Evaluates each entry into a folder of its own; what goes wrong with one stops no other.

    Raises:
        InfraError: an entry failed, or too little of it could be judged.
    """
    model_name = next(iter(plan.values())).model
    folder = out or new_folder(Path("runs"), "eval", title, _short(model_name))
    _begin_suite(folder, plan)
    problems = {name: problem for name, spec in plan.items() if (problem := _unavailable(spec.env))}
    failed: dict[str, str] = {}
    summaries: dict[str, Summary] = {}
    with keeping(folder, f"; --out {folder} goes on from there"), progress_display() as show, ExitStack() as stack:
        model = _started(model_name, stack, show)
        for name, spec in plan.items():
            if name in problems:
                continue
            try:
                work = _evaluate(spec, model, folder / name, options, show, {}, stage=name)
                summaries[name] = asyncio.run(work)
                ensure_judged(summaries[name], options.min_judged)
            except SkyRLError as error:
                failed[name] = str(error)
    _write_suite(folder, plan, summaries, problems | failed)
    _print_suite(console, folder, summaries, problems | failed)
    if failed or not summaries:
        raise InfraError(f"{len(failed)} of {len(plan)} entries have no result: {', '.join(failed or problems)}")


async def _evaluate(
    spec: EvalSpec,
    model: str,
    folder: Path,
    options: Options,
    show: OnProgress,
    depended_on: Mapping[str, Any],
    stage: str = "evaluate",
) -> Summary:
    chosen = make_env(spec.env, **spec.kwargs).tasks
    chosen = chosen if spec.tasks is None else chosen.take(spec.tasks)
    images = images_of(chosen)
    live = options.concurrency or auto_concurrency(spec.env, served=model.startswith("http"))
    show(Progress("load", 0, 0, message=model))

    def begun(config: Mapping[str, Any]) -> None:
        _check_data(config, depended_on)
        write_provenance(folder, spec, config, images)

    async with _opened(model, spec.kwargs.get("dialect", "auto"), _tokenizer(spec.model)) as policy:
        if not isinstance(policy, KnownPlayer) and policy.renderer is not None:
            show(Progress("load", 1, 1, message=f"{model} writes tool calls as {policy.renderer.dialect.name}"))
        summary = await evaluate(
            spec.env,
            policy,
            tasks=chosen,
            samples=spec.samples,
            out_dir=folder,
            env_kwargs=spec.kwargs,
            sampling=spec.sampling,
            seeds=spec.seeds if len(spec.seeds) > 1 else (),
            limits=RolloutLimits(live=live, max_context=spec.max_context),
            ks=spec.k,
            caps=options.caps,
            prices=options.prices,
            retry_excluded=options.retry_excluded,
            begun=begun,
            on_progress=show,
            stage=stage,
        )
    if images:
        note_images(folder, await asyncio.to_thread(image_digests, images))
    return summary


@asynccontextmanager
async def _opened(model: str, dialect: str, tokenizer: str | None) -> AsyncIterator[Policy | KnownPlayer]:
    """Who answers to a name."""
    if model == GOLD or model.startswith(PROBE):
        yield KnownPlayer(model.removeprefix(PROBE))
        return
    if model.startswith(SCRIPTED):
        policy: Policy = _scripted(model)
    else:
        policy = open_policy(model, api_key=os.environ.get("SKYRL_API_KEY"), dialect=dialect, tokenizer=tokenizer)
    try:
        yield policy
    finally:
        await policy.aclose()


def _scripted(model: str) -> Policy:
    """A function from a prompt to an answer, as a policy: scripted:MODULE:NAME."""
    module, _, name = model.removeprefix(SCRIPTED).partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        answer = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{model}: it is scripted:MODULE:NAME, a function from a prompt to an answer: {error}"
        ) from None
    policy = ScriptedPolicy(answer)
    policy.name = model
    return policy


def _started(model: str, stack: ExitStack, show: OnProgress) -> str:
    """A model's address, with its server started if it needs one."""
    if not model.startswith(SERVED):
        return model
    return stack.enter_context(
        served(model.removeprefix(SERVED), lambda text: show(Progress("load", 0, 0, message=text)))
    )


def _tokenizer(model: str) -> str | None:
    """Of a model that a server was started for: with it, prompts are made and calls are read here, token for token.
    Without transformers the server makes them, and wants the options that read calls.
    """
    if not model.startswith(SERVED) or importlib.util.find_spec("transformers") is None:
        return None
    return shlex.split(model.removeprefix(SERVED))[0]


def _short(model: str) -> str:
    words = model.removeprefix(SERVED).split()
    return Path(words[0].partition("#")[2] or words[0]).name if words else "model"


def _check_data(config: Mapping[str, Any], depended_on: Mapping[str, Any]) -> None:
    before = (depended_on.get("data") or {}).get("digest")
    if before is not None and before != config["tasks"]["digest"]:
        raise ConfigError(
            f"the tasks of {config['env_id']} are others now (digest {config['tasks']['digest']}, then {before}): "
            "the evaluation can't be repeated"
        )


def _changes(folder: Path, depended_on: Mapping[str, Any]) -> list[str]:
    """What a repeated evaluation depends on and is another now, in words."""
    now = open_run(folder).provenance
    packages = dict(depended_on.get("packages") or {})
    pairs = {name: (then, now.get("packages", {}).get(name)) for name, then in packages.items()}
    images = dict(depended_on.get("images") or {})
    pairs |= {image: (then, now.get("images", {}).get(image)) for image, then in images.items() if then is not None}
    pairs |= {name: (depended_on[name], now.get(name)) for name in ("source", "hardware") if name in depended_on}
    return [f"Then {name} was {then}, now it is {here}." for name, (then, here) in pairs.items() if then != here]


def _unavailable(env_id: str) -> str:
    entry = next((entry for entry in registered() if entry.id == env_id), None)
    if entry is None:
        return f"{env_id} is not registered"
    missing = missing_needs(entry.needs)
    return f"{env_id} needs {'; '.join(missing)}" if missing else ""


def _begin_suite(folder: Path, plan: Mapping[str, EvalSpec]) -> None:
    config = {"entries": list(plan), "evaluations": {name: spec.model_dump(mode="json") for name, spec in plan.items()}}
    if (folder / "run.json").is_file():
        held = open_run(folder)
        if held.kind != "suite" or held.config != config:
            raise ConfigError(
                f"{folder} holds a run with other settings: give another folder, or what its run.json says"
            )
        return
    write_json(folder / "run.json", {"kind": "suite", "config": config, "provenance": provenance()})


def _write_suite(
    folder: Path, plan: Mapping[str, EvalSpec], summaries: Mapping[str, Summary], problems: Mapping[str, str]
) -> None:
    entries = {
        name: {
            "env_id": spec.env,
            "problem": problems.get(name, ""),
            **({"judged": found.judged, "total": found.wanted, "reward": asdict(found.reward)} if found else {}),
        }
        for name, spec in plan.items()
        for found in [summaries.get(name)]
    }
    write_json(folder / "suite.json", {"entries": entries})


def _print_one(summary: Summary, folder: Path, console: Console) -> None:
    from skyrl_gym.evaluate.report import write_report

    print_results(console, {summary.policy: summary}, write_report(folder))
    if summary.stopped:
        console.print(f"Stopped: {summary.stopped}. --out {folder} goes on.", markup=False, soft_wrap=True)


def _print_suite(console: Console, folder: Path, summaries: Mapping[str, Summary], problems: Mapping[str, str]) -> None:
    from skyrl_gym.evaluate.report import write_report

    if summaries:
        console.print(summary_table(summaries))
    for name, summary in summaries.items():
        stopped = f" (stopped: {summary.stopped})" if summary.stopped else ""
        console.print(f"Report: {write_report(folder / name)}{stopped}", markup=False, highlight=False, soft_wrap=True)
    for name, problem in problems.items():
        console.print(f"{name}: {problem}", style="yellow", markup=False, soft_wrap=True)
