"""The share of each hop of the lag along one path: the talk's pie, and bars.

Drawn as SVG without text, in colours that are distinct on light and dark: as charts of plotly they would cost each
visit a tenth of a second. A table has their words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import pi
from typing import Final

from dashboard.figures.look import faded
from lagloss_server.model.hops import Hop

PIE_PX: Final = 168
BAR_PX: Final = (96, 14)
"""Width of the longest bar and height of each."""
_RING: Final = 46
"""Width of the pie's ring."""
_PATTERN_PX: Final = 5


@dataclass(frozen=True, slots=True)
class HopShare:
    """`share` of the sum of all that adds to the lag; None of a negative value, which is a fault of a clock."""

    hop: Hop
    p95_ms: float
    share: float | None


def shares(path: Mapping[Hop, float]) -> list[HopShare]:
    """Return the hops of a path, the largest first."""
    total = sum(value for value in path.values() if value > 0)
    shares = [HopShare(hop, value, value / total if value >= 0 and total else None) for hop, value in path.items()]
    return sorted(shares, key=lambda share: -share.p95_ms)


def pie(shares: Sequence[HopShare], hue: Mapping[str, str]) -> str:
    """Return the SVG of each hop's part of the whole, clockwise from the top, the largest first; `hue` by node."""
    shown_shares = [share for share in shares if share.share]
    radius = (PIE_PX - _RING) / 2
    around, turned, drawn = 2 * pi * radius, 0.0, []
    gap = 1.5 if len(shown_shares) > 1 else 0.0
    for number, share in enumerate(shown_shares):
        length = (share.share or 0.0) * around
        drawn.append(_pattern(number, share.hop, hue))
        drawn.append(
            f'<circle r="{radius}" fill="none" stroke="url(#p{number})" stroke-width="{_RING}" '
            f'stroke-dasharray="{max(0.5, length - gap):.2f} {around:.2f}" stroke-dashoffset="{-turned:.2f}"/>'
        )
        turned += length
    half = PIE_PX / 2
    box = f'width="{PIE_PX}" height="{PIE_PX}" viewBox="{-half:g} {-half:g} {PIE_PX} {PIE_PX}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}><g transform="rotate(-90)">{"".join(drawn)}</g></svg>'


def bar(share: HopShare, longest_ms: float, hue: Mapping[str, str]) -> str:
    """Return the SVG of one hop's bar, none of a negative value; the longest has the whole width."""
    width, height = BAR_PX
    length = width * max(0.0, share.p95_ms) / longest_ms if longest_ms > 0 else 0.0
    drawn = f'{_pattern(0, share.hop, hue)}<rect width="{length:.1f}" height="{height}" rx="2" fill="url(#p0)"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">{drawn}</svg>'


def _pattern(number: int, hop: Hop, hue: Mapping[str, str]) -> str:
    """Return how a hop is filled: a process solid, a queue hatched, an arrival dotted."""
    size, colour = _PATTERN_PX, hue[hop.node]
    ground = colour if hop.kind == "process" else faded(colour)
    marks = {
        "process": "",
        "queue": f'<rect width="1.6" height="{size}" fill="{colour}"/>',
        "arrival": f'<circle cx="2.5" cy="2.5" r="1" fill="{colour}"/>',
    }
    square = f'width="{size}" height="{size}"'
    drawn = f'<rect {square} fill="{ground}"/>{marks[hop.kind]}'
    units = 'patternUnits="userSpaceOnUse" patternTransform="rotate(45)"'
    return f'<pattern id="p{number}" {square} {units}>{drawn}</pattern>'
