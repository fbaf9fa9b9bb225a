"""`skyrl eval ENV`: how well a model does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from skyrl_gym.cli.evaluating import Options, evaluate_one, evaluate_suite
from skyrl_gym.cli.settings import SetOption, parse_settings
from skyrl_gym.errors import ConfigError
from skyrl_gym.evaluate.spec import EvalSpec, SuiteEntry, read_provenance, read_suite
from skyrl_gym.evaluate.spending import Caps, Prices

EXAMPLES = """
skyrl eval skyrl/memory-v0 --model smollm2-135m --tasks 20 --set document_words=60 --max-tokens 64
skyrl eval skyrl/swe-v0 --model http://localhost:8000/v1#my-model -n 4 --k 1,4
skyrl eval skyrl/memory-v0 --model runs/quickstart/model --out runs/memory    # goes on where it stopped
skyrl eval suites/paper.yaml --serve Qwen/Qwen3-8B -n 4 --seed 0,1,2
skyrl eval --from runs/memory                            # once more
skyrl eval --from runs/memory --model my/other-model     # the same of another model, for `skyrl compare`
"""
_SUITE = (".yaml", ".yml")


Targets = Annotated[
    list[str] | None, typer.Argument(metavar="ENV...", help="Ids of `skyrl list`, or suite files (suites/*.yaml).")
]
Model = Annotated[
    str | None, typer.Option(help="A folder, a hub id, smollm2-135m, URL#MODEL (its key in $SKYRL_API_KEY), or gold.")
]
Serve = Annotated[str | None, typer.Option(metavar="MODEL", help="Start vLLM with this model.")]
Repeat = Annotated[
    Path | None, typer.Option("--from", metavar="RUN", help="Repeat its evaluation, maybe with another --model.")
]
Samples = Annotated[int, typer.Option("--samples", "-n", min=1, help="Trajectories of each task.")]
Seed = Annotated[str, typer.Option(metavar="S,S", help="Of the sampling; -n holds for each of several.")]
Ks = Annotated[str | None, typer.Option(metavar="K,K", help="For pass@k; by default 1, 2, 4 ... up to -n.")]
Concurrency = Annotated[str, typer.Option(metavar="N|auto", help="Episodes at once.")]
RetryExcluded = Annotated[
    bool, typer.Option("--retry-excluded/--keep-excluded", help="In a folder that exists: try failures again.")
]
Price = Annotated[str | None, typer.Option(metavar="IN,OUT", help="Of a million tokens.")]
MinJudged = Annotated[float, typer.Option(min=0.0, max=1.0, help="Exit with 1 if a smaller share could be judged.")]


def run(
    targets: Targets = None,
    model: Model = None,
    serve: Serve = None,
    repeat: Repeat = None,
    samples: Samples = 1,
    tasks: Annotated[int | None, typer.Option(min=1, help="Only the first N tasks.")] = None,
    split: Annotated[str, typer.Option(help="Which tasks.")] = "test",
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one answer.")] = 512,
    max_context: Annotated[int | None, typer.Option(min=1, help="Tokens of a prompt and its answer.")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the likeliest token.")] = 1.0,
    seed: Seed = "0",
    k: Ks = None,
    concurrency: Concurrency = "auto",
    out: Annotated[Path | None, typer.Option(help="The run folder; one that exists is completed.")] = None,
    retry_excluded: RetryExcluded = True,
    max_tokens_total: Annotated[int | None, typer.Option(min=1, help="Stop at so many tokens, in and out.")] = None,
    price: Price = None,
    max_cost: Annotated[float | None, typer.Option(min=0.0, help="Stop at this cost; needs --price.")] = None,
    max_minutes: Annotated[float | None, typer.Option(min=0.0, help="Stop after so long.")] = None,
    min_judged: MinJudged = 0.5,
    settings: SetOption = None,
) -> None:
    """Evaluate a model on one environment, several, or a suite.

    Prints the mean reward, pass@k and pass^k with 95 % intervals, and writes trajectories, summary and an HTML report.
    """
    caps = Caps(max_tokens_total, max_cost, None if max_minutes is None else max_minutes * 60)
    options = Options(_parse_concurrency(concurrency), caps, _parse_price(price), retry_excluded, min_judged)
    if repeat is not None:
        if targets:
            raise ConfigError(f"--from says what is evaluated; leave out {', '.join(targets)}")
        spec, depends_on = read_provenance(repeat)
        if model or serve:
            spec = spec.model_copy(update={"model": _which_model(model, serve)})
        evaluate_one(spec, out, options, Console(), depends_on)
        return
    seeds = _numbers("--seed", seed)
    fields: dict[str, Any] = {
        "model": _which_model(model, serve),
        "tasks": tasks,
        "samples": samples,
        "seeds": seeds,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "max_context": max_context,
        "k": _parse_ks(k, samples * len(seeds)),
    }
    kwargs = {**parse_settings(settings), "split": split}
    names = targets or []
    if len(names) == 1 and not names[0].endswith(_SUITE):
        evaluate_one(EvalSpec(env=names[0], kwargs=kwargs, **fields), out, options, Console())
        return
    evaluate_suite(_title(names), _plan(names, fields, kwargs), out, options, Console())


def _plan(names: Sequence[str], fields: dict[str, Any], kwargs: dict[str, Any]) -> dict[str, EvalSpec]:
    """The evaluations of some environments and suite files, by name."""
    if not names:
        raise ConfigError("name an environment or a suite file; `skyrl list` shows the environments")
    plan: dict[str, EvalSpec] = {}
    for name in names:
        if name.endswith(_SUITE):
            entries = read_suite(Path(name)).entries
        else:
            entries = {re.sub(r"[^\w.]+", "-", name): SuiteEntry(env=name)}
        for title, entry in entries.items():
            if title in plan:
                raise ConfigError(f"{title!r} would be evaluated twice")
            plan[title] = _specify(entry, fields, kwargs)
    return plan


def _specify(entry: SuiteEntry, fields: dict[str, Any], kwargs: dict[str, Any]) -> EvalSpec:
    """What the entry leaves out is the command's to say; of two bounds on the tasks the smaller holds."""
    own = {name: value for name in ("samples", "max_tokens", "max_context") if (value := getattr(entry, name))}
    tasks = min((count for count in (entry.tasks, fields["tasks"]) if count is not None), default=None)
    return EvalSpec(**{**fields, **own, "env": entry.env, "kwargs": {**kwargs, **entry.kwargs}, "tasks": tasks})


def _title(names: Sequence[str]) -> str:
    return Path(names[0]).stem if len(names) == 1 else "suite"


def _which_model(model: str | None, serve: str | None) -> str:
    if (model is None) == (serve is None):
        raise ConfigError("give --model, or --serve to start vLLM for one, and not both")
    return model if model is not None else f"vllm:{serve}"


def _parse_concurrency(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"--concurrency takes a number from 1 on, or auto; got {text!r}")
    return int(text)


def _parse_price(text: str | None) -> Prices | None:
    if text is None:
        return None
    try:
        asked, sampled = (float(word) for word in text.split(","))
    except ValueError:
        raise ConfigError(
            f"--price takes two numbers like 0.5,1.5: of a million tokens in and out; got {text!r}"
        ) from None
    return Prices(asked, sampled)


def _parse_ks(text: str | None, tries: int) -> tuple[int, ...] | None:
    if text is None:
        return None
    ks = tuple(sorted(set(_numbers("--k", text))))
    if not 1 <= ks[0] <= ks[-1] <= tries:
        raise ConfigError(f"--k takes numbers from 1 to -n (here {tries}); got {text}")
    return ks


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(word) for word in text.split(","))
    except ValueError:
        raise ConfigError(f"{option} takes numbers like 1,4; got {text!r}") from None
    if len(set(numbers)) < len(numbers):
        raise ConfigError(f"{option} gives a number twice: {text}")
    return numbers
