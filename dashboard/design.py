"""Design system: type scale, spacing and colour roles of pages, charts and reports. No other module names a colour.

Colours have roles, not names: what is drawn in `text` is read against `ground` in either scheme (WCAG AA, 4.5:1; marks
3:1). A verdict has a word and a sign beside its colour, and the four colours differ in lightness for readers who see no
difference between red and green.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

SIZES: Final = {"small": 12, "body": 14, "lead": 16, "title": 22, "number": 28}
"""Type scale, in px: notes and table heads; text and tables; sentences and section heads; page heads; key figures."""
SPACES: Final = {"tight": 4, "close": 8, "even": 12, "loose": 20}
"""Spacing, in px: within a line; within a group; between groups and inside of cards; between sections."""
FONT: Final = "system-ui, sans-serif"
MONO: Final = 'ui-monospace, "DejaVu Sans Mono", monospace'
NODE_HUES: Final = ("#4c78d8", "#1fa187", "#d9822b", "#a05fc4", "#4fa8c9", "#c2557e", "#8a8d2f", "#7a6ff0")
"""One per node, distinguishable by colour-blind readers too, and readable on white and on near-black."""


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of one scheme, by role."""

    text: str
    dim: str
    """Of what is read second: notes, units, axis labels."""
    line: str
    """Of a chart's main line."""
    ground: str
    raised: str
    """Behind key figures and code."""
    border: str
    grid: str
    """Lines of charts that only lead the eye."""
    link: str
    target: str
    """Of SLA targets."""
    lossy: str
    """Text about a loss."""
    shade: str
    """Over a part of a chart: back-filled history."""
    ok: str
    loss: str
    unknown: str
    idle: str
    open: str
    warning: str


LIGHT: Final = Palette(
    text="#1f2328",
    dim="#59616b",
    line="#111418",
    ground="#ffffff",
    raised="#f5f6f8",
    border="#dde1e6",
    grid="#eceef1",
    link="#364fc7",
    target="#b01e57",
    lossy="#c92a2a",
    shade="rgba(90,100,120,.10)",
    ok="#0a7d5c",
    loss="#d6282e",
    unknown="#a65200",
    idle="#626973",
    open="#2f6fc2",
    warning="#a65200",
)
DARK: Final = Palette(
    text="#d9dde3",
    dim="#a6adb8",
    line="#f8f9fa",
    ground="#1f2125",
    raised="#292c31",
    border="#3b3f46",
    grid="#33373d",
    link="#91a7ff",
    target="#ff7aa2",
    lossy="#ff8787",
    shade="rgba(200,210,235,.10)",
    ok="#2fbf94",
    loss="#ff6b6b",
    unknown="#f0a04b",
    idle="#9aa1ab",
    open="#6ea8f0",
    warning="#f0a04b",
)


def palette(dark: bool) -> Palette:
    return DARK if dark else LIGHT


def translucent(colour: str, share: float) -> str:
    """Return `#rrggbb` as seen through: 0 is invisible, 1 the colour itself."""
    red, green, blue = (int(colour[index : index + 2], 16) for index in (1, 3, 5))
    return f"rgba({red},{green},{blue},{share:g})"


def hues(nodes: Sequence[str]) -> dict[str, str]:
    """Return the colour of each node, by its place in the flow."""
    return {node: NODE_HUES[index % len(NODE_HUES)] for index, node in enumerate(nodes)}


def css_variables(only: Palette | None = None) -> str:
    """Return the same as CSS: `--ll-text`, `--ll-size-body`, `--ll-space-even`, …; `only`: of one scheme, for paper and
    what knows no `light-dark`, else by the scheme that is in force."""

    def colour(name: str) -> str:
        if only is not None:
            return str(getattr(only, name))
        return f"light-dark({getattr(LIGHT, name)}, {getattr(DARK, name)})"

    colours = (f"--ll-{field.name}: {colour(field.name)}" for field in fields(Palette))
    sizes = (f"--ll-size-{name}: {px}px" for name, px in SIZES.items())
    spaces = (f"--ll-space-{name}: {px}px" for name, px in SPACES.items())
    return f":root {{ {'; '.join([*colours, *sizes, *spaces])}; --ll-font: {FONT}; --ll-mono: {MONO}; }}"
