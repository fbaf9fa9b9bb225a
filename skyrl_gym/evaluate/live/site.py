"""What the live page answers: pages and pieces of pages, made from the indexes of one run or two."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from markupsafe import Markup

from skyrl_gym.errors import ConfigError
from skyrl_gym.evaluate.live.index import Index, Row
from skyrl_gym.evaluate.live.query import ORDERS, REWARDS, Query, search
from skyrl_gym.evaluate.live.tokens import Decode, find_tokenizer, tokens_of
from skyrl_gym.evaluate.report.episode import Room, make_entry
from skyrl_gym.evaluate.report.page import Page, Part, make_page
from skyrl_gym.evaluate.report.rendering import asset, make_templates
from skyrl_gym.evaluate.runs import JOURNAL, Run

__all__ = ["Response", "Site"]

PACKAGE = "skyrl_gym.evaluate.live"
PAGE = 100  # trajectories that a list gets at once
GROW_BYTES = 16 * 1024 * 1024  # read between two looks at the clock
ROOM = Room(characters=200_000, image_bytes=8_000_000)
ROLES = {"before": "after", "after": "before"}  # what stands beside what within a training


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP answer."""

    body: bytes
    kind: str = "text/html; charset=utf-8"
    status: int = 200


@dataclass
class LivePart:
    """One set of trajectories: a training's own, or an evaluation."""

    name: str
    role: str
    run: Run
    index: Index
    keys: tuple[int, dict[Any, int]] = field(default=(0, {}))

    def position_of(self, row: Row) -> int | None:
        """Where the trajectory of the same task and sample is."""
        count = len(self.index.rows)
        if self.keys[0] != count:
            self.keys = (count, {other.bare.key: place for place, other in enumerate(self.index.rows)})
        return self.keys[1].get(row.bare.key)


class Site:
    """The live page of one run, or of two to compare.

    Args:
        runs: one or two.
        tokenizer: a tokenizer.json or a folder that has one, to show tokens as text; by default the run's own.
    """

    def __init__(self, runs: tuple[Run, ...], tokenizer: str | None = None) -> None:
        self.runs = runs
        self.parts: list[LivePart] = []
        self._tokenizer = tokenizer
        self._templates = make_templates(PACKAGE)
        self._decoders: dict[str, Decode | None] = {}
        self._routes: Mapping[str, Callable[[Mapping[str, str]], Response]] = {
            "/": self._shell,
            "/overview": self._overview,
            "/status": self._status,
            "/facets": self._facets,
            "/list": self._list,
            "/trajectory": self._trajectory,
            "/tokens": self._tokens,
            "/live.css": lambda query: Response(
                (asset("report.css") + asset("live.css", PACKAGE)).encode(), "text/css"
            ),
            "/live.js": lambda query: Response(asset("live.js", PACKAGE).encode(), "text/javascript"),
        }
        self._discover()

    def respond(self, path: str, query: Mapping[str, str]) -> Response:
        """The answer to a request; what is wrong with it is said with status 400 or 404."""
        route = self._routes.get(path)
        if route is None:
            return Response(b"There is no such page.", "text/plain", 404)
        try:
            return route(query)
        except ConfigError as error:
            return Response(str(error).encode(errors="replace"), "text/plain; charset=utf-8", 400)
        except (KeyError, ValueError, IndexError):
            return Response(b"There is no such trajectory.", "text/plain", 404)

    def grow(self, seconds: float) -> bool:
        """Reads what is new for about so long; says whether there may be more."""
        self._discover()
        until = time.monotonic() + seconds
        more = True
        while more and time.monotonic() < until:
            more = sum(part.index.grow(GROW_BYTES) for part in self.parts) > 0
        return more

    def watch(self, stop: threading.Event) -> None:
        """Keeps the indexes up with their journals until it is told to stop."""
        while not stop.is_set():
            if not self.grow(0.5):
                stop.wait(1.0)

    # ---- what there is

    def _discover(self) -> None:
        for run in self.runs:
            mark = f"{run.name}: " if len(self.runs) > 1 else ""
            self._add(mark, "training" if run.kind == "train" else "evaluation", run)
            if run.kind != "eval":
                for role, evaluation in run.evaluations.items():
                    self._add(mark, role, evaluation)

    def _add(self, mark: str, role: str, run: Run) -> None:
        journal = run.path / JOURNAL
        if all(part.index.path != journal for part in self.parts):
            name = mark + role if role != "evaluation" or not mark else mark.removesuffix(": ")
            while any(part.name == name for part in self.parts):
                name += "'"
            self.parts.append(LivePart(name, role, run, Index(journal)))

    def _parts_of(self, run: Run) -> list[LivePart]:
        return [part for part in self.parts if part.run.path == run.path or part.run.path.parent.parent == run.path]

    def _beside(self, part: LivePart) -> LivePart | None:
        """The part that is read beside another: the same of the other run, or before and after a training."""
        if len(self.runs) > 1:
            mine = next(run for run in self.runs if part in self._parts_of(run))
            others = [other for run in self.runs if run is not mine for other in self._parts_of(run)]
            return next((other for other in others if other.role == part.role), others[0] if others else None)
        return next((other for other in self.parts if other.role == ROLES.get(part.role)), None)

    def _find(self, name: str) -> tuple[LivePart, int]:
        number, _, position = name.removeprefix("p").partition("-")
        return self.parts[int(number)], int(position)

    def _pages(self) -> tuple[Page, list[Page]]:
        """The page of everything, and with two runs one of each."""
        if len(self.runs) == 1:
            return make_page(self.runs[0], tuple(_frozen(part, part.name) for part in self.parts)), []
        pages = [make_page(run, tuple(_frozen(part, part.role) for part in self._parts_of(run))) for run in self.runs]
        whole = make_page(self.runs[0], tuple(_frozen(part, part.name) for part in self.parts))
        names = [run.name for run in self.runs]
        return replace(whole, name=" and ".join(names), kind="Two runs", headline="", notice="", facts=()), pages

    # ---- pages

    def _shell(self, query: Mapping[str, str]) -> Response:
        template = self._templates.get_template("live.html.j2")
        return Response(
            template.render(
                title=" and ".join(run.name for run in self.runs),
                overview=self._overview_html(),
                parts=[(f"p{number}", part.name) for number, part in enumerate(self.parts)],
                orders=("first", "last", *ORDERS),
                rewards=tuple(REWARDS),
                can_compare=any(self._beside(part) for part in self.parts),
            ).encode()
        )

    def _overview(self, query: Mapping[str, str]) -> Response:
        return Response(self._overview_html().encode())

    def _overview_html(self) -> Markup:
        page, pages = self._pages()
        names = [(run.name, of) for run, of in zip(self.runs, pages, strict=False)]
        return Markup(self._templates.get_template("live_overview.html.j2").render(page=page, pages=names))

    def _status(self, query: Mapping[str, str]) -> Response:
        read = sum(part.index.read for part in self.parts)
        metrics = [file.stat().st_size for run in self.runs if (file := run.path / "metrics.jsonl").is_file()]
        return _as_json(
            {
                "rows": sum(len(part.index.rows) for part in self.parts),
                "parts": len(self.parts),
                "read": read,
                "size": sum(part.index.size for part in self.parts),
                "damaged": sum(part.index.damaged for part in self.parts),
                "metrics": sum(metrics),
            }
        )

    def _facets(self, query: Mapping[str, str]) -> Response:
        rows = self.parts[_number(query, "part", len(self.parts))].index.rows
        outcomes = dict.fromkeys(row.bare.stop_reason.value for row in rows)
        tools = sorted({tool for row in rows for tool in row.tools})
        return _as_json({"outcomes": list(outcomes), "tools": tools})

    def _list(self, query: Mapping[str, str]) -> Response:
        number = _number(query, "part", len(self.parts))
        part = self.parts[number]
        names = ("outcome", "reward", "tool", "text", "order")
        wanted = Query(**{name: query[name] for name in names if query.get(name)})
        after, most = _number(query, "after"), max(1, min(_number(query, "most") or PAGE, 10 * PAGE))
        found = search(part.index, wanted, after, most)
        template = self._templates.get_template("live_items.html.j2").module
        rows = part.index.rows
        html = Markup("").join(
            template.item(f"p{number}-{place}", rows[place], _origin(part, rows[place]))  # type: ignore[attr-defined]
            for place in found.positions
        )
        return _as_json({"html": html, "count": len(found.positions), "after": found.after, "total": found.total,
                         "rows": len(rows)})  # fmt: skip

    def _trajectory(self, query: Mapping[str, str]) -> Response:
        part, position = self._find(query["id"])
        other = self._beside(part) if query.get("beside") else None
        shown = [(part, position)]
        if other is not None:
            place = other.position_of(part.index.rows[position])
            shown += [] if place is None else [(other, place)]
        template = self._templates.get_template("live_items.html.j2").module
        articles = [self._article(template, *each) for each in shown]
        if other is not None and len(shown) == 1:
            articles.append(template.nothing(other.name))  # type: ignore[attr-defined]
        return Response(Markup("").join(articles).encode(errors="replace"))

    def _article(self, template: Any, part: LivePart, position: int) -> Markup:
        entry = make_entry(part.index.trajectory(position), part.name, f"p{self.parts.index(part)}-{position}", ROOM)
        made: Markup = template.article(entry)
        return made

    def _tokens(self, query: Mapping[str, str]) -> Response:
        part, position = self._find(query["id"])
        turn = part.index.trajectory(position).turns[_number(query, "turn") - 1]
        if turn.transition is None:
            return Response(b"The policy gave no tokens.")
        decode = self._decoder(part.run)
        tokens, left_out = tokens_of(turn.transition, decode)
        template = self._templates.get_template("live_items.html.j2").module
        made = template.tokens(tokens, left_out, turn.transition, decode is not None)  # type: ignore[attr-defined]
        return Response(made.encode(errors="replace"))

    def _decoder(self, run: Run) -> Decode | None:
        name = str(run.path)
        if name not in self._decoders:
            above = [other for other in self.runs if run in (held for held in other.evaluations.values())]
            found = find_tokenizer(run, self._tokenizer)
            self._decoders[name] = found or (find_tokenizer(above[0], None) if above else None)
        return self._decoders[name]


def _frozen(part: LivePart, name: str) -> Part:
    return Part(name, part.run, part.index.survey(_ks(part.run)))


def _origin(part: LivePart, row: Row) -> str:
    # Sampled with the weights after `version` steps, a trajectory is of the step that follows.
    if part.role == "training" and row.version is not None:
        return f"step {row.version + 1}"
    return f"sample {row.bare.sample}"


def _ks(run: Run) -> tuple[int, ...]:
    held = run.summary if run.kind == "eval" else None
    return tuple(held.pass_at) if held else (1,)


def _number(query: Mapping[str, str], name: str, below: int | None = None) -> int:
    text = query.get(name, "0").removeprefix("p") or "0"
    if not text.isascii() or not text.isdigit() or (below is not None and int(text) >= below):
        raise ConfigError(f"{name} is a number{'' if below is None else f' below {below}'}; got {text!r}")
    return int(text)


def _style() -> str:
    return asset("report.css") + asset("live.css", PACKAGE)


def _as_json(data: Mapping[str, Any]) -> Response:
    return Response(json.dumps(data).encode(), "application/json")
