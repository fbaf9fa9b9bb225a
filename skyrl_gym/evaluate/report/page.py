"""What a report says, as plain values: everything the template shows is computed here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from skyrl_gym.errors import StopReason
from skyrl_gym.evaluate.metrics import Summary, difference
from skyrl_gym.evaluate.report.charts import Chart, line_chart, reward_chart, series
from skyrl_gym.evaluate.report.survey import Survey, survey
from skyrl_gym.evaluate.runs import Run
from skyrl_gym.evaluate.table import Row, are_comparable, format_estimate, result_rows

__all__ = ["Page", "Part", "Reader", "make_page", "make_parts"]

MOST_STEPS = 1_000
"""A longer training is drawn from every second step, or every third ..."""

SMALL_CHARTS = {
    "loss": "Loss",
    "grad_norm": "Gradient norm",
    "learning_rate": "Learning rate",
    "entropy": "Entropy",
    "kl": "KL to the starting model",
    "sampling/kl": "KL between sampling and training",
    "sampled_tokens": "Sampled tokens",
    "turns": "Turns a trajectory",
    "excluded": "Excluded trajectories",
}
"""Metrics of a training that get a chart of their own, where they change."""

STAGES = {
    "setup": "Preparing the environment",
    "policy": "Waiting for the policy",
    "tools": "Running tools",
    "grade": "Grading",
}


@dataclass(frozen=True)
class Part:
    """One set of trajectories of the run: the training's own, or one evaluation."""

    name: str
    run: Run
    survey: Survey

    @property
    def summary(self) -> Summary:
        """Its numbers."""
        return self.survey.summary


@dataclass(frozen=True)
class Bar:
    """A labelled quantity and its share of the whole, in per cent."""

    label: str
    value: str
    percent: float
    excluded: bool = False


@dataclass(frozen=True)
class Reader:
    """How many trajectories there are and how many the report holds."""

    total: int
    shown: int


@dataclass(frozen=True)
class Page:
    """The report, apart from its trajectories."""

    name: str
    kind: str
    headline: str
    notice: str
    facts: tuple[tuple[str, str], ...]
    columns: tuple[str, ...]
    results: tuple[Row, ...]
    reward: Chart | None
    charts: tuple[tuple[str, Chart], ...]
    steps: tuple[dict[str, Any], ...]
    outcomes: tuple[tuple[str, tuple[Bar, ...]], ...]
    stages: tuple[Bar, ...]
    settings: tuple[tuple[str, str], ...]

    @property
    def any_excluded(self) -> bool:
        """Some trajectories did not count."""
        return any(bar.excluded for _, bars in self.outcomes for bar in bars)


def make_parts(run: Run) -> tuple[Part, ...]:
    """Reads every set of trajectories of a run once."""
    own = Part("training" if run.kind == "train" else "evaluation", run, survey(run.trajectories(), _ks(run)))
    others = run.evaluations.items() if run.kind == "train" else ()
    return (own, *(Part(name, held, survey(held.trajectories(), _ks(held))) for name, held in others))


def make_page(run: Run, parts: tuple[Part, ...]) -> Page:
    """The report's values."""
    evaluations = {part.name: part.summary for part in parts if part.run.kind == "eval" and part.summary.total}
    rows = _thinned(run.metrics())
    return Page(
        name=run.name,
        kind="Training" if run.kind == "train" else "Evaluation",
        headline=_headline(evaluations),
        notice=_notice(run, parts),
        facts=tuple(_facts(run, parts)),
        columns=(*evaluations, *(["change"] if are_comparable(list(evaluations.values())) else [])),
        results=tuple(result_rows(list(evaluations.values()))) if evaluations else (),
        reward=reward_chart(series(rows, "reward", "reward_std"), {name: s.reward for name, s in evaluations.items()}),
        charts=tuple(_small_charts(rows)),
        steps=tuple(rows),
        outcomes=tuple((part.name, tuple(_outcomes(part.summary))) for part in parts if part.summary.total),
        stages=tuple(_stages(parts[0].survey)),
        settings=tuple(_flatten(run.config)),
    )


def _headline(evaluations: Mapping[str, Summary]) -> str:
    match list(evaluations.values()):
        case [before, after]:
            change = difference(before, after)
            if before.reward.value is None or after.reward.value is None:
                return "An evaluation judged no trajectory: there is nothing to compare."
            return (
                f"Mean reward on held-out tasks went from {before.reward.value:.3f} to {after.reward.value:.3f}"
                f"{_certainty(change.low, change.high)}"
            )
        case [only] if only.reward.value is None:
            return "No trajectory was judged: there is no result."
        case [only]:
            return f"Mean reward {format_estimate(only.reward)} over {only.tasks} tasks"
    return ""


def _certainty(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "."
    if low > 0 or high < 0:
        return f", a change of {low:+.3f} to {high:+.3f} (95 % interval, paired by task)."
    return f"; the 95 % interval of the change, {low:+.3f} to {high:+.3f}, includes 0."


def _notice(run: Run, parts: tuple[Part, ...]) -> str:
    """What a reader must know before believing the numbers."""
    if run.kind == "eval":
        count = run.config.get("tasks", {}).get("count", 0) * run.config.get("samples", 0)
        missing = count - parts[0].summary.total
        return f"Not complete: {missing:,} of {count:,} trajectories are missing." if missing > 0 else ""
    if "after" not in run.evaluations:
        return "Not complete: the evaluation after training is missing."
    return ""


def _facts(run: Run, parts: tuple[Part, ...]) -> Iterator[tuple[str, str]]:
    config, origin = run.config, run.provenance
    section = config.get("env")
    yield "Environment", str(config.get("env_id") or (section.get("id") if isinstance(section, Mapping) else ""))
    yield "Model", str(config.get("policy") or config.get("model") or "")
    if run.kind == "train":
        yield "Steps", str(len(run.metrics()))
    else:
        yield "Tasks", f"{parts[0].summary.tasks:,} with {config.get('samples', '?')} samples each"
    judged, total = sum(p.summary.judged for p in parts), sum(p.summary.total for p in parts)
    yield "Trajectories", f"{total:,}, {total - judged:,} of them excluded"
    tokens = sum(part.summary.sampled_tokens for part in parts)
    yield "Sampled tokens", f"{tokens:,}" if tokens else ""  # a server may not tell
    yield "Begun", _when(str(origin.get("created", "")))
    yield "Software", ", ".join(f"{name} {version}" for name, version in (origin.get("packages") or {}).items())
    yield "Machine", ", ".join(filter(None, [str(origin.get("machine", "")), f"Python {origin.get('python', '?')}"]))
    commit, _, dirty = str(origin.get("git") or "").partition("-")
    yield "Commit", commit[:12] + (", with changes" if dirty else "")


def _when(stamp: str) -> str:
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        return stamp
    return f"{moment.day} {moment:%B %Y, %H:%M} {moment.tzname() or ''}".strip()


def _thinned(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most `MOST_STEPS` of them at even distances, the last one included."""
    stride = -(-len(rows) // MOST_STEPS) or 1
    return rows[::-1][::stride][::-1]


def _small_charts(rows: list[dict[str, Any]]) -> Iterator[tuple[str, Chart]]:
    for name, title in SMALL_CHARTS.items():
        data = series(rows, name)
        chart = line_chart(data)
        if chart is not None and len(set(data.values)) > 1:
            yield title, chart


def _outcomes(summary: Summary) -> Iterator[Bar]:
    for reason, count in summary.outcomes.items():
        percent = 100 * count / summary.total
        yield Bar(reason, f"{count:,} ({percent:.0f} %)", round(percent, 2), excluded=not StopReason(reason).valid)


def _stages(found: Survey) -> Iterator[Bar]:
    seconds = {**found.summary.seconds, **found.turn_seconds}
    total = sum(seconds.get(stage, 0.0) for stage in STAGES)
    for stage, label in STAGES.items():
        if taken := seconds.get(stage, 0.0):
            yield Bar(label, f"{taken:.2f} s" if taken >= 0.01 else "< 0.01 s", round(100 * taken / total, 2))


def _flatten(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """A configuration as dotted names and values."""
    for name, entry in value.items():
        if isinstance(entry, Mapping) and entry:
            yield from _flatten(entry, f"{prefix}{name}.")
        else:
            yield prefix + str(name), entry if isinstance(entry, str) else json.dumps(entry, ensure_ascii=False)


def _ks(run: Run) -> tuple[int, ...]:
    held = run.summary if run.kind == "eval" else None
    return tuple(held.pass_at) if held else (1,)
