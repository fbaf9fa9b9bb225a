"""Which trajectories a list shows: filters, an order, and pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from skyrl_gym.errors import ConfigError
from skyrl_gym.evaluate.live.index import Index, Row
from skyrl_gym.evaluate.metrics import PASSED
from skyrl_gym.messages import Message
from skyrl_gym.rollout import Trajectory

__all__ = ["Found", "Query", "search"]

ORDERS: Mapping[str, Callable[[Row], float]] = {
    "best": lambda row: -(row.reward if row.reward is not None else float("-inf")),
    "worst": lambda row: row.reward if row.reward is not None else float("inf"),
    "longest": lambda row: -row.turns,
    "shortest": lambda row: row.turns,
}
"""Beside `first` and `last`, which are the journal's own and its reverse."""

REWARDS: Mapping[str, Callable[[float | None], bool]] = {
    "passed": lambda reward: reward is not None and reward >= PASSED,
    "partial": lambda reward: reward is not None and 0 < reward < PASSED,
    "none": lambda reward: reward is not None and reward <= 0,
    "excluded": lambda reward: reward is None,
}

MOST_LOOKED_AT = 2_000  # trajectories that one page of a text search reads


@dataclass(frozen=True, slots=True)
class Query:
    """Filters by outcome, reward, tool and text; empty ones let everything through. `text` ignores case."""

    outcome: str = ""
    reward: str = ""
    tool: str = ""
    text: str = ""
    order: str = "first"

    def __post_init__(self) -> None:
        if self.order not in ("first", "last", *ORDERS):
            raise ConfigError(f"an order is first, last, {', '.join(ORDERS)}; got {self.order!r}")
        if self.reward not in ("", *REWARDS):
            raise ConfigError(f"a reward is one of {', '.join(REWARDS)}; got {self.reward!r}")

    def fits(self, row: Row) -> bool:
        """Whether a row passes every filter but the text."""
        return (
            (not self.outcome or row.bare.stop_reason.value == self.outcome)
            and (not self.tool or self.tool in row.tools)
            and (not self.reward or REWARDS[self.reward](row.reward))
        )

    def positions(self, index: Index) -> list[int]:
        """The positions that fit, in order, the text aside."""
        rows = index.rows
        found = [position for position, row in enumerate(rows) if self.fits(row)]
        if self.order in ORDERS:
            found.sort(key=lambda position: ORDERS[self.order](rows[position]))
        return found[::-1] if self.order == "last" else found


@dataclass(frozen=True, slots=True)
class Found:
    """One page: positions in the journal, where the next page begins (None: nowhere), and how many there are.

    With a text, `total` is None: to know it, everything would have to be read.
    """

    positions: tuple[int, ...]
    after: int | None
    total: int | None


def search(index: Index, query: Query, after: int = 0, most: int = 100) -> Found:
    """A page of at most `most` trajectories from the place `after` on."""
    candidates = query.positions(index)
    if not query.text:
        page = candidates[after : after + most]
        end = after + len(page)
        return Found(tuple(page), end if end < len(candidates) else None, len(candidates))
    found: list[int] = []
    place = after
    for place in range(after, min(len(candidates), after + MOST_LOOKED_AT)):
        if _holds(index, candidates[place], query.text):
            found.append(candidates[place])
            if len(found) == most:
                break
    end = min(place + 1, len(candidates))
    return Found(tuple(found), end if end < len(candidates) else None, None)


def _holds(index: Index, position: int, text: str) -> bool:
    """Whether a text stands in a trajectory; its line is parsed only where the bytes say that it may."""
    wanted = text.lower()
    # Such a text stands in the line as it is, however often it was quoted.
    plain = wanted.isascii() and wanted.isprintable() and not set(wanted) & set('"\\')
    if plain and wanted.encode() not in index.line(index.rows[position]).lower():
        return False
    return any(wanted in said.lower() for said in _texts(index.trajectory(position)))


def _texts(trajectory: Trajectory) -> Iterator[str]:
    yield trajectory.task_id
    for message in trajectory.opening:
        yield from _said(message)
    for turn in trajectory.turns:
        yield from _said(turn.message)
        for message in turn.observations:
            yield from _said(message)
    yield from trajectory.artifacts.values()
    if trajectory.error is not None:
        yield trajectory.error.message


def _said(message: Message) -> Iterator[str]:
    yield message.text
    yield message.reasoning or ""
    for call in message.tool_calls:
        yield call.name
        yield from _values(dict(call.arguments) if not isinstance(call.arguments, str) else call.arguments)


def _values(value: object) -> Iterator[str]:
    match value:
        case dict():
            for entry in value.values():
                yield from _values(entry)
        case list():
            for entry in value:
                yield from _values(entry)
        case _:
            yield str(value)
