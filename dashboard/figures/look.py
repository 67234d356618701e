"""How figures look in both schemes, and how text gets into them unharmed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Numbers: TypeAlias = npt.NDArray[np.float64]
Moments: TypeAlias = npt.NDArray[np.str_] | npt.NDArray[np.object_]
HUES: Final = ("#4c78d8", "#1fa187", "#d9822b", "#a05fc4", "#4fa8c9", "#c2557e", "#8a8d2f", "#7a6ff0")
"""One per node, distinguishable by colour-blind readers too, and readable on white and on near-black."""
CERTAIN: Final = "#e03131"


@dataclass(frozen=True, slots=True)
class Colours:
    text: str
    dim: str
    grid: str
    ground: str
    line: str
    target: str
    history: str
    lossy: str


_LIGHT: Final = Colours(
    "#2b2f36", "#5c636e", "#e9ecef", "#ffffff", "#111418", "#c2255c", "rgba(90,100,120,.10)", "#c92a2a"
)
_DARK: Final = Colours(
    "#d5d9e0", "#a6adb8", "#363a42", "#242424", "#f8f9fa", "#ff6b95", "rgba(200,210,235,.10)", "#ff8787"
)


def colours(dark: bool) -> Colours:
    return _DARK if dark else _LIGHT


def hues(nodes: Sequence[str]) -> dict[str, str]:
    """Return the colour of each node, by its place in the flow."""
    return {node: HUES[at % len(HUES)] for at, node in enumerate(nodes)}


def safe(text: str) -> str:
    """Text that plotly shows as it stands: it takes `<b>` and `<a href>` in names and hover texts for markup."""
    return escape(text, quote=False)


def numbers(values: Iterable[float | None]) -> Numbers:
    """Values for plotly, NaN where there is none: it looks at a list's values one by one, and at an array's not."""
    return np.array([math.nan if value is None else value for value in values], np.float64)


def moments(texts: Iterable[str | None]) -> Moments:
    """Places on a time axis for plotly, None where a line ends; as `numbers`. An array of texts alone is copied at
    once, one of objects one by one."""
    given = list(texts)
    return np.array(given, object) if None in given else np.array(given, np.str_)


def faded(hue: str) -> str:
    red, green, blue = (int(hue[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},.28)"


def hatch(kind: str) -> str:
    """Return the pattern of a hop: a process is solid, a queue hatched, the arrival dotted."""
    return {"process": "", "queue": "/", "arrival": "."}[kind]


def lag_unit(highest_ms: float) -> tuple[float, str]:
    """(ms, name) of the unit that an axis up to so much is in."""
    if highest_ms < 2_000:
        return 1.0, "ms"
    return (1_000.0, "s") if highest_ms < 300_000 else (60_000.0, "min")


def base_layout(of: Colours) -> dict[str, Any]:
    """Return the layout that all figures share."""
    return {
        "template": "none",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": of.text},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {"bgcolor": of.ground, "font": {"color": of.text}, "namelength": -1},
        "legend": {"font": {"size": 11}, "traceorder": "normal"},
    }
