"""Line charts as geometry: the template draws them, in per cent of the plot's width and height.

Shapes scale with the page while text stays text, so one chart serves a telephone and a wide screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, isfinite, log10
from typing import Any

from skyrl_gym.evaluate.estimates import Estimate

__all__ = ["Chart", "Marker", "Series", "line_chart", "reward_chart", "series"]

TICKS = 5  # about as many on the vertical axis
MOST_DOTS = 60  # above this many points a line has none


@dataclass(frozen=True, slots=True)
class Marker:
    """A point drawn on top, with a vertical bar from `low` to `high`."""

    x: float
    y: float
    low: float
    high: float
    label: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart. Coordinates run from 0 to 100, right and down; `line` and `band` are SVG path data."""

    line: str
    band: str
    dots: tuple[tuple[float, float, str], ...]
    markers: tuple[Marker, ...]
    y_ticks: tuple[str, ...]  # from the top down, evenly spaced
    x_ticks: tuple[str, ...]  # from the left, evenly spaced
    last: str


@dataclass(frozen=True, slots=True)
class Series:
    """Numbers by step, with a spread on both sides of each."""

    steps: tuple[int, ...]
    values: tuple[float, ...]
    spread: tuple[float, ...] = ()


def series(rows: Iterable[Mapping[str, Any]], name: str, spread: str = "") -> Series:
    """One column of a run's metrics; steps where it is missing or no finite number are left out."""
    found = [row for row in rows if _is_number(row.get("step")) and _is_number(row.get(name))]
    return Series(
        tuple(int(row["step"]) for row in found),
        tuple(float(row[name]) for row in found),
        tuple(float(row[spread]) if _is_number(row.get(spread)) else 0.0 for row in found) if spread else (),
    )


def reward_chart(rewards: Series, evaluations: Mapping[str, Estimate]) -> Chart | None:
    """The reward by step; the evaluation `before` stands at step 0, `after` at the last step."""
    places = {"before": 0, "after": max(rewards.steps, default=0)}
    markers = [
        Marker(place, found.value, _or(found.low, found.value), _or(found.high, found.value), name)
        for name, place in places.items()
        if (found := evaluations.get(name)) is not None and found.value is not None
    ]
    return line_chart(rewards, markers)


def line_chart(data: Series, markers: Sequence[Marker] = ()) -> Chart | None:
    """A chart, or None where there is nothing to draw.

    A spread that crosses 0 while no value does is cut at 0: a reward of 0.1 ± 0.3 reaches no negative reward.
    """
    if not data.steps:
        return None
    spread = data.spread or (0.0,) * len(data.steps)
    lowest = 0.0 if min([*data.values, *(m.y for m in markers)]) >= 0 else float("-inf")
    lows = [max(lowest, value - width) for value, width in zip(data.values, spread, strict=True)]
    highs = [value + width for value, width in zip(data.values, spread, strict=True)]
    steps = [*data.steps, *(int(m.x) for m in markers)]
    y_ticks = _ticks(min([*lows, *(max(lowest, m.low) for m in markers)]), max([*highs, *(m.high for m in markers)]))
    plot = _Plot(min(steps), max(steps), y_ticks[0], y_ticks[-1])
    points = [plot.place(x, y) for x, y in zip(data.steps, data.values, strict=True)]
    upper = [plot.place(x, y) for x, y in zip(data.steps, highs, strict=True)]
    lower = [plot.place(x, y) for x, y in zip(data.steps, lows, strict=True)]
    labels = [f"step {x}: {y:.4g}" for x, y in zip(data.steps, data.values, strict=True)]
    return Chart(
        line=_path(points),
        band=_path([*upper, *reversed(lower)]) + "Z" if any(spread) else "",
        dots=tuple((x, y, label) for (x, y), label in zip(points, labels, strict=True))
        if len(points) <= MOST_DOTS
        else (),
        markers=tuple(plot.marker(m) for m in markers),
        y_ticks=tuple(f"{tick:.6g}" for tick in reversed(y_ticks)),
        x_ticks=_x_ticks(min(steps), max(steps)),
        last=f"{data.values[-1]:,.0f}" if abs(data.values[-1]) >= 1_000 else f"{data.values[-1]:.3g}",
    )


@dataclass(frozen=True, slots=True)
class _Plot:
    """The part of the plane that a chart shows."""

    left: float
    right: float
    bottom: float
    top: float

    def place(self, x: float, y: float) -> tuple[float, float]:
        width, height = self.right - self.left or 1, self.top - self.bottom
        y = min(max(y, self.bottom), self.top)
        return round(100 * (x - self.left) / width, 2), round(100 * (self.top - y) / height, 2)

    def marker(self, marker: Marker) -> Marker:
        x, y = self.place(marker.x, marker.y)
        label = f"{marker.label}: {marker.y:.3f}"
        if marker.low != marker.high:
            label += f" [{marker.low:.3f}, {marker.high:.3f}]"
        return Marker(x, y, self.place(0, marker.low)[1], self.place(0, marker.high)[1], label)


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "".join(f"{'L' if i else 'M'}{x:g} {y:g}" for i, (x, y) in enumerate(points))


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers, evenly spaced, that enclose both ends."""
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = (0.0, max(1.0, 2 * high)) if low >= 0 else (2 * low, 0.0)
    rough = (high - low) / (TICKS - 1)
    scale = 10 ** floor(log10(rough))
    width = next(m * scale for m in (1, 2, 2.5, 5, 10) if m * scale >= rough * 0.999)
    first = floor(low / width + 1e-9)
    count = 1
    while (first + count) * width < high - 1e-9 * width:
        count += 1
    return [(first + i) * width for i in range(count + 1)]


def _x_ticks(first: int, last: int) -> tuple[str, ...]:
    """Whole steps at even distances."""
    for parts in (4, 5, 3, 2):
        if last > first and (last - first) % parts == 0:
            return tuple(str(first + (last - first) // parts * i) for i in range(parts + 1))
    return tuple(dict.fromkeys((str(first), str(last))))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _or(value: float | None, other: float) -> float:
    return other if value is None else value
