"""Shared looks of figures, and how text and numbers get into them unharmed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dashboard.design import FONT, SIZES, Palette, translucent

Numbers: TypeAlias = npt.NDArray[np.float64]
Moments: TypeAlias = npt.NDArray[np.str_] | npt.NDArray[np.object_]


def safe(text: str) -> str:
    """Text that plotly shows as it stands: it takes `<b>` and `<a href>` in names and hover texts for markup."""
    return escape(text, quote=False)


def numbers(values: Iterable[float | None]) -> Numbers:
    """Values for plotly, NaN where there is none: it looks at a list's values one by one, and at an array's not."""
    return np.array([math.nan if value is None else value for value in values], np.float64)


def moments(texts: Iterable[str | None]) -> Moments:
    """Places on a time axis for plotly, None where a line ends; as `numbers`. An array of texts alone is copied at
    once, one of objects one by one."""
    texts_list = list(texts)
    return np.array(texts_list, object) if None in texts_list else np.array(texts_list, np.str_)


def faded(hue: str) -> str:
    return translucent(hue, 0.28)


def hatch(kind: str) -> str:
    """Return the pattern of a hop: a process is solid, a queue hatched, the arrival dotted."""
    return {"process": "", "queue": "/", "arrival": "."}[kind]


def lag_unit(highest_ms: float) -> tuple[float, str]:
    """(ms, name) of the unit that an axis up to so much is in."""
    if highest_ms < 2_000:
        return 1.0, "ms"
    return (1_000.0, "s") if highest_ms < 300_000 else (60_000.0, "min")


def base_layout(palette: Palette) -> dict[str, Any]:
    """Return the layout that all figures share."""
    return {
        "template": "none",
        "font": {"family": FONT, "size": SIZES["small"], "color": palette.text},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {"bgcolor": palette.ground, "font": {"color": palette.text}, "namelength": -1},
        "legend": {"font": {"size": 11}, "traceorder": "normal"},
    }
