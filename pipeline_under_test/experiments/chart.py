"""Charts of experiments: panels one below the other that share an x-axis, as SVG that needs no script and no font."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

WIDTH: Final = 960
LEFT, RIGHT, TOP, GAP = 70, 20, 82, 44
"""Margins of the panels, and what lies between two of them."""
HEIGHT: Final = 120
"""Height of a panel."""
BOTTOM: Final = 44
HUES: Final = ("#c2255c", "#1864ab", "#2b8a3e", "#e67700")
DASHES: Final = ("", "7 4", "2 3", "10 3 2 3")
"""Lines differ by more than colour, for those who see none."""
TICKS: Final = 5
STEPS: Final = (1, 2, 5, 10)
SAME: Final = 1e-6
"""Values that differ by less than this share are drawn as one."""
FILLED: Final = 0.8
"""The share of a category's width that its bars take."""
HEADROOM: Final = 1.12
"""A bar's value stands above it."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A line of a panel. Lines with the same label look the same in all panels."""

    label: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class ChartPanel:
    """A y-axis from 0, with its unit, and lines; `mark` is a level to compare with, and what it is called."""

    title: str
    lines: Sequence[ChartLine]
    mark: tuple[float, str] | None = None

    @property
    def highest(self) -> float:
        """The highest value that is drawn."""
        ys = [y for line in self.lines for _, y in line.points] + ([self.mark[0]] if self.mark else [])
        return max(ys, default=1.0)


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart; `x_title` says what the x-axis shows, in which unit. With `categories` the x-axis has these instead of
    numbers, at 0, 1, 2 and so on: each point is a bar with its value, those of a category in the legend's order."""

    title: str
    x_title: str
    panels: Sequence[ChartPanel]
    categories: Sequence[str] = ()

    def svg(self) -> str:
        """Return the chart as an SVG document."""
        lines = [line for panel in self.panels for line in panel.lines]
        labels = list(dict.fromkeys(line.label for line in lines))
        xs = [x for line in lines for x, _ in line.points]
        if self.categories:
            across = ChartScale((-0.5, len(self.categories) - 0.5), LEFT, WIDTH - RIGHT, -0.5)
            marks = [(across.at(index), name) for index, name in enumerate(self.categories)]
        else:
            least = min(xs, default=0.0)
            across = ChartScale(ticks(least, max(xs, default=1.0)), LEFT, WIDTH - RIGHT, least)
            marks = across.marks
        draw = _Drawn.of_bars if self.categories else _Drawn.of_lines
        panels = [
            draw(panel, TOP + index * (HEIGHT + GAP), across, [labels.index(line.label) for line in panel.lines])
            for index, panel in enumerate(self.panels)
        ]
        bottom = TOP + len(panels) * (HEIGHT + GAP) - GAP
        return _TEMPLATE.render(
            chart=self,
            panels=panels,
            marks=marks,
            legend=[(label, index, LEFT + 230 * index) for index, label in enumerate(labels)],
            size=(WIDTH, bottom + BOTTOM),
            frame=(LEFT, WIDTH - RIGHT, bottom),
            hues=HUES,
            dashes=DASHES,
        )


@dataclass(frozen=True, slots=True)
class ChartScale:
    """From values to pixels: the value `first` lies at `start`, the last tick at `end`."""

    ticks: Sequence[float]
    start: float
    end: float
    first: float = 0.0

    def at(self, value: float) -> float:
        return self.start + (self.end - self.start) * (value - self.first) / (self.ticks[-1] - self.first)

    @property
    def marks(self) -> list[tuple[float, str]]:
        """Where ticks lie, and what they say."""
        return [(self.at(value), f"{value:g}") for value in self.ticks if value >= self.first]


def ticks(least: float, most: float) -> list[float]:
    """Round values from `least` or below to `most` or above, about TICKS steps of 1, 2 or 5 times a power of ten."""
    span = most - least
    if span <= SAME * max(1.0, abs(most)):
        span = 1.0
        most = least + span  # a lone value lies at the first tick or above it: the last one has to be beyond it
    power = 10.0 ** math.floor(math.log10(span / TICKS))
    step = next(step * power for step in STEPS if step * power * TICKS >= span)
    first = math.floor(least / step)
    last = max(math.ceil(most / step), first + 1)
    return [round(number * step, 12) for number in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A panel in pixels."""

    panel: ChartPanel
    top: float
    down: ChartScale
    paths: Sequence[tuple[int, str]] = ()
    """Number of the line's look, and its points."""
    bars: Sequence[_Bar] = ()

    @classmethod
    def of_lines(cls, panel: ChartPanel, top: float, across: ChartScale, looks: Iterable[int]) -> _Drawn:
        down = ChartScale(ticks(0.0, panel.highest), top + HEIGHT, top)
        paths = [
            (look % len(HUES), " ".join(f"{across.at(x):.1f},{down.at(y):.1f}" for x, y in line.points))
            for look, line in zip(looks, panel.lines, strict=True)
        ]
        return cls(panel, top, down, paths)

    @classmethod
    def of_bars(cls, panel: ChartPanel, top: float, across: ChartScale, looks: Iterable[int]) -> _Drawn:
        down = ChartScale(ticks(0.0, HEADROOM * panel.highest), top + HEIGHT, top)
        width = FILLED * (across.at(1) - across.at(0)) / max(1, len(panel.lines))
        bars = [
            _Bar(look % len(HUES), across.at(x) + (index - len(panel.lines) / 2) * width, width, down.at(y), said(y))
            for index, (look, line) in enumerate(zip(looks, panel.lines, strict=True))
            for x, y in line.points
        ]
        return cls(panel, top, down, bars=bars)


@dataclass(frozen=True, slots=True)
class _Bar:
    """A bar from the panel's bottom up to `top`: where it begins on the left, and what is written above it."""

    look: int
    left: float
    width: float
    top: float
    value: str


def said(value: float) -> str:
    """Return a value in three digits, or in whole numbers."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


_TEMPLATE: Final = Environment(
    loader=PackageLoader(__name__.rpartition(".")[0], "."),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
).get_template("chart.svg.jinja")
