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
"""Of a panel."""
BOTTOM: Final = 44
HUES: Final = ("#c2255c", "#1864ab", "#2b8a3e", "#e67700")
DASHES: Final = ("", "7 4", "2 3", "10 3 2 3")
"""Lines differ by more than colour, for those who see none."""
TICKS: Final = 5
STEPS: Final = (1, 2, 5, 10)
SAME: Final = 1e-6
"""Values that differ by less than this share are drawn as one."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a panel. Lines with the same label look the same in all panels."""

    label: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Panel:
    """A y-axis from 0, with its unit, and lines; `mark` is a level to compare with, and what it is called."""

    title: str
    lines: Sequence[Line]
    mark: tuple[float, str] | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart; `x_title` says what the x-axis shows, in which unit."""

    title: str
    x_title: str
    panels: Sequence[Panel]

    def svg(self) -> str:
        """The chart as an SVG document."""
        lines = [line for panel in self.panels for line in panel.lines]
        labels = list(dict.fromkeys(line.label for line in lines))
        xs = [x for line in lines for x, _ in line.points]
        across = Scale(ticks(min(xs, default=0.0), max(xs, default=1.0)), LEFT, WIDTH - RIGHT, min(xs, default=0.0))
        panels = [
            _Drawn.of(panel, TOP + at * (HEIGHT + GAP), across, [labels.index(line.label) for line in panel.lines])
            for at, panel in enumerate(self.panels)
        ]
        bottom = TOP + len(panels) * (HEIGHT + GAP) - GAP
        return _TEMPLATE.render(
            chart=self,
            panels=panels,
            across=across,
            legend=[(label, at, LEFT + 230 * at) for at, label in enumerate(labels)],
            size=(WIDTH, bottom + BOTTOM),
            frame=(LEFT, WIDTH - RIGHT, bottom),
            hues=HUES,
            dashes=DASHES,
        )


@dataclass(frozen=True, slots=True)
class Scale:
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
    power = 10.0 ** math.floor(math.log10(span / TICKS))
    step = next(step * power for step in STEPS if step * power * TICKS >= span)
    first = math.floor(least / step)
    last = max(math.ceil(most / step), first + 1)
    return [round(at * step, 12) for at in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A panel in pixels."""

    panel: Panel
    top: float
    down: Scale
    paths: Sequence[tuple[int, str]]
    """Number of the line's look, and its points."""

    @classmethod
    def of(cls, panel: Panel, top: float, across: Scale, looks: Iterable[int]) -> _Drawn:
        highest = max((y for line in panel.lines for _, y in line.points), default=1.0)
        if panel.mark is not None:
            highest = max(highest, panel.mark[0])
        down = Scale(ticks(0.0, highest), top + HEIGHT, top)
        paths = [
            (look % len(HUES), " ".join(f"{across.at(x):.1f},{down.at(y):.1f}" for x, y in line.points))
            for look, line in zip(looks, panel.lines, strict=True)
        ]
        return cls(panel, top, down, paths)


_TEMPLATE: Final = Environment(
    loader=PackageLoader(__name__.rpartition(".")[0], "."),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
).get_template("chart.svg.jinja")
