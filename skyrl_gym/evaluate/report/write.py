"""Writing the report: one HTML file that needs nothing else and runs nothing but its own script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path

import jinja2
from markupsafe import Markup

from skyrl_gym.evaluate.report.episode import make_entry
from skyrl_gym.evaluate.report.page import Part, Reader, make_page, make_parts
from skyrl_gym.evaluate.report.rendering import asset, make_templates
from skyrl_gym.evaluate.report.survey import choose, chosen_trajectories
from skyrl_gym.evaluate.runs import open_run, write_whole

__all__ = ["MOST_BYTES", "MOST_TRAJECTORIES", "write_report"]

MOST_TRAJECTORIES = 200
"""A report holds at most this many trajectories; a training's go half to the training, the rest to its evaluations."""

MOST_BYTES = 4_000_000
"""No trajectory is added to a report whose trajectories take this much already."""


def write_report(run_dir: str | Path) -> Path:
    """Writes `report.html` into a run folder, from what is there: the run may still be going on.

    The trajectories shown are the first, the last, the best and the worst, and some of every way to fail.

    Raises:
        ConfigError: it is no run folder, or one of its files is damaged.
    """
    run = open_run(run_dir)
    parts = make_parts(run)
    templates = make_templates()
    pieces = list(_pieces(templates, parts))
    style, script = asset("report.css"), asset("report.js")
    html = templates.get_template("report.html.j2").render(
        page=make_page(run, parts),
        style=Markup(style),
        script=Markup(script),
        policy=_content_policy(style, script),
        items=[item for item, _ in pieces],
        articles=[article for _, article in pieces],
        reader=Reader(sum(part.summary.total for part in parts), len(pieces)),
        parts=[part.name for part in parts if part.summary.total],
        outcomes=list(dict.fromkeys(reason for part in parts for reason in part.summary.outcomes)),
    )
    path = run.path / "report.html"
    write_whole(path, [html.encode()])
    return path


def _pieces(templates: jinja2.Environment, parts: tuple[Part, ...]) -> Iterator[tuple[Markup, Markup]]:
    """The line in the list and the full view of each trajectory that the report holds."""
    template = templates.get_template("trajectory.html.j2").module
    number = 0
    for part, most in zip(parts, _shares(len(parts)), strict=True):
        size = 0
        for trajectory in chosen_trajectories(part.run, choose(part.survey.lines, most)):
            if size > MOST_BYTES * most // MOST_TRAJECTORIES:
                break
            number += 1
            entry = make_entry(trajectory, part.name, f"t{number}")
            item, article = template.item(entry), template.article(entry)  # type: ignore[attr-defined]
            size += len(article)
            yield item, article


def _shares(parts: int) -> list[int]:
    if parts == 1:
        return [MOST_TRAJECTORIES]
    half = MOST_TRAJECTORIES // 2
    return [half, *[half // (parts - 1)] * (parts - 1)]


def _content_policy(style: str, script: str) -> str:
    """Only these two inline texts are let in, so that nothing in a trajectory could run even if it got through."""
    allowed = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return f"default-src 'none'; img-src data:; style-src 'sha256-{allowed[0]}'; script-src 'sha256-{allowed[1]}'"
