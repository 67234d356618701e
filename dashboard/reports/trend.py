"""The trend of an objective against the range before: better, worse or the same, as far as bounds allow to say so."""

from __future__ import annotations

from typing import Final, Literal

from dashboard.format import VerdictLook
from dashboard.reports import wording
from lagloss_server.sums.error_budget import Attainment

Trend = Literal["better", "worse", "same", "unclear", "none"]
"""`unclear`: the bounds overlap; `none`: there is nothing to compare."""

TRENDS: Final[dict[Trend, VerdictLook]] = {
    "better": VerdictLook("better", "▲", "teal", "ok", "triangle-up", "certainly better than in the previous range"),
    "worse": VerdictLook("worse", "▼", "red", "loss", "triangle-down", "certainly worse than in the previous range"),
    "same": VerdictLook("same", "=", "gray", "idle", "circle-open", "the same as in the previous range"),
    "unclear": VerdictLook("unclear", "?", "orange", "unknown", "diamond", "missing data could change this verdict"),
    "none": VerdictLook("no comparison", "○", "gray", "idle", "circle-open", "one of the ranges has no messages"),
}


def bad_shares(attainment: Attainment) -> tuple[float, float]:
    """Return the share of messages that were bad: for certain, and at most."""
    return attainment.bad.min / attainment.of, attainment.bad.max / attainment.of


def trend(now: Attainment, before: Attainment) -> Trend:
    """Compare an objective of two ranges by the messages that were seen."""
    if not now.of or not before.of:
        return "none"
    if wording.attained(now) == wording.attained(before):
        return "same"
    (low, high), (low_before, high_before) = bad_shares(now), bad_shares(before)
    if low > high_before:
        return "worse"
    return "better" if high < low_before else "unclear"
