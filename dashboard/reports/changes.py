"""What changed against the range before: a sentence on loss and one on lateness, made of the report's own figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dashboard.format import place_label
from dashboard.reports import wording
from dashboard.reports.model import Figures, Report
from dashboard.reports.trend import Trend, bad_shares, trend
from lagloss_server.base import format as fmt
from lagloss_server.incidents.incident import Incident
from lagloss_server.model.hops import Hop
from lagloss_server.model.window import Interval, Lags
from lagloss_server.sums.error_budget import OBJECTIVES, Attainment, Objective

LEAST_KNOWN: Final = 0.5
"""Two ranges are compared if at least this share of the minutes of each has a verdict."""
_BLAMED: Final[dict[Objective, str]] = {"loss": "loss", "on-time": "lag"}
"""What incidents look for the cause of (`blame.of`), by the objective that suffers."""


def what_changed(report: Report) -> tuple[str, ...]:
    """Return two sentences, or one that says what is missing for a comparison."""
    before = wording.range_words(report.previous_span)
    for figures, name in ((report.previous, before), (report.whole, "this range")):
        if (figures.known_share or 0) < LEAST_KNOWN:
            share = fmt.percent(figures.known_share or 0)
            return (f"Not enough data to compare with {before}: only {share} of the minutes of {name} have a verdict.",)
    return _loss(report, before), _lateness(report, before)


def _loss(report: Report, before: str) -> str:
    now, then = _both(report.whole, report.previous, "loss")
    shares = f"{wording.attained(then)} to {wording.attained(now)} of messages"
    match loss_trend := trend(now, then):
        case "none":
            return f"Not enough data to compare loss with {before}: one of the ranges has no messages."
        case "same":
            return f"Loss is the same as in {before}: {wording.attained(now)} of messages."
        case "unclear":
            return f"It is unclear whether loss changed since {before}: {shares}, with overlapping bounds."
        case _:
            verb = "rose" if loss_trend == "worse" else "fell"
            where = _at_destination(report, "loss", loss_trend) or _at_place(report, loss_trend)
            details = [
                f"Loss {verb} from {shares}",
                _since(report, "loss", loss_trend),
                where,
                _cause(report, "loss", loss_trend),
            ]
            return f"{''.join(details)}."


def _lateness(report: Report, before: str) -> str:
    now, then = _both(report.whole, report.previous, "on-time")
    shares = f"{wording.attained(then)} to {wording.attained(now)} of messages"
    match lag_trend := trend(now, then):
        case "none":
            return f"Not enough data to compare lateness with {before}: one of the ranges has no messages."
        case "same":
            return f"The on-time share is the same as in {before}: {wording.attained(now)} of messages{_lag(report)}."
        case "unclear":
            shares_text = f"{shares}{_lag(report)}, with overlapping bounds"
            return f"It is unclear whether the on-time share changed since {before}: {shares_text}."
        case _:
            verb = "fell" if lag_trend == "worse" else "rose"
            since, where = _since(report, "on-time", lag_trend), _at_destination(report, "on-time", lag_trend)
            details = [_lag(report), since, where, _at_hop(report, lag_trend), _cause(report, "on-time", lag_trend)]
            return f"The on-time share {verb} from {shares}{''.join(details)}."


def _lags(report: Report) -> tuple[float | None, float | None]:
    """Return the p95 of this range and of the one before."""
    now, then = (Lags.of(figures.total.e2e_lags).p95 for figures in (report.whole, report.previous))
    return now, then


def _lag(report: Report) -> str:
    now, then = _lags(report)
    if now is None or then is None:
        return ""
    lag, before = fmt.duration(now), fmt.duration(then)
    return f" (lag p95 {lag}, unchanged)" if lag == before else f" (lag p95 {before} to {lag})"


def _both(now: Figures, before: Figures, objective: Objective) -> tuple[Attainment, Attainment]:
    which = OBJECTIVES.index(objective)
    return now.attainments[which], before.attainments[which]


def _since(report: Report, objective: Objective, trend: Trend) -> str:
    """Return on which days it was so: since one, on each, or on some."""
    low_before, high_before = bad_shares(_both(report.previous, report.previous, objective)[0])
    bad_days = [day for day in report.days if day.attainments[OBJECTIVES.index(objective)].of]
    beyond: list[bool] = []
    for day in bad_days:
        low, high = bad_shares(day.attainments[OBJECTIVES.index(objective)])
        beyond.append(low > high_before if trend == "worse" else high < low_before)
    days = [wording.local_day(day.from_s, report.span.zone) for day in bad_days]
    if len(bad_days) < 2 or not any(beyond):
        return ""
    first = beyond.index(True)
    if all(beyond):
        return f", on each of {len(bad_days)} days"
    if all(beyond[first:]):
        return f", since {days[first]}"
    return f", on {fmt.counted(sum(beyond), 'day')} of {len(bad_days)}, first on {days[first]}"


def _at_destination(report: Report, objective: Objective, loss_trend: Trend) -> str:
    """Return the destination where most messages more, or fewer, were bad than at the rate before."""
    if len(report.destinations) < 2:
        return ""
    moved = [
        (_excess(now, then), destination.name, now, then)
        for destination in report.destinations
        for now, then in [_both(destination.whole, destination.previous, objective)]
        if trend(now, then) == loss_trend
    ]
    if not moved:
        return ""
    _, name, now, then = max(moved, key=lambda change: abs(change[0]))
    return f", most at destination {name} ({wording.attained(then)} to {wording.attained(now)})"


def _excess(now: Attainment, then: Attainment) -> float:
    return now.bad.min - then.bad.min / then.of * now.of


def _at_place(report: Report, trend: Trend) -> str:
    """Return the place where the share of lost messages changed most, of those where it changed in this direction."""
    total, before = report.whole.total, report.previous.total
    nothing, sign = Interval(0, 0), 1 if trend == "worse" else -1
    moved = {
        place: (
            before.lost_at.get(place, nothing).min / before.messages,
            total.lost_at.get(place, nothing).min / total.messages,
        )
        for place in dict.fromkeys([*total.lost_at, *before.lost_at])
    }
    place = max(moved, key=lambda place: sign * (moved[place][1] - moved[place][0]), default=None)
    if place is None or sign * (moved[place][1] - moved[place][0]) <= 0:
        return ""
    then, now = map(fmt.percent, moved[place])
    return f", most at {place_label(place)} ({then} to {now})"


def _at_hop(report: Report, trend: Trend) -> str:
    """Return the hop whose p95 changed most, where the lag went in this direction."""
    lag, lag_then = _lags(report)
    now, before, sign = report.lag.hops, report.previous_lag.hops, 1 if trend == "worse" else -1
    if lag is None or lag_then is None or sign * (lag - lag_then) <= 0:
        return ""
    moved: dict[Hop, float] = {hop: sign * (now[hop] - before[hop]) for hop in now if hop in before}
    hop = max(moved, key=moved.__getitem__, default=None)
    if hop is None or moved[hop] <= 0 or fmt.duration(now[hop]) == fmt.duration(before[hop]):
        return ""
    return f", most of the lag in {hop.label} (p95 {fmt.duration(before[hop])} to {fmt.duration(now[hop])})"


def _cause(report: Report, objective: Objective, trend: Trend) -> str:
    """Return the cause that the longest of its incidents names, or that none does; of what got worse."""
    if trend != "worse":
        return ""
    blamed = [
        incident
        for incident in report.incidents.listed
        if incident.blame and incident.blame.get("of") == _BLAMED[objective]
    ]
    named = _longest([incident for incident in blamed if incident.named_cause])
    if named is not None and named.named_cause:
        opened = wording.local(named.opened_at.timestamp(), report.span.zone)
        return f"; the incident of {opened} says: {named.named_cause.rstrip('.')}"
    return "; no common cause found" if blamed else "; no incident names a cause"


def _longest(incidents: Sequence[Incident]) -> Incident | None:
    return max(incidents, key=lambda incident: (incident.windows, -incident.first_window_s), default=None)
