"""Ranges of time as people name them, on the calendar of a time zone: `last-month`, `2026-W47`, from here to there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from math import ceil
from typing import Final, Literal

from dashboard.request.shown_range import MAX_SPAN_S, RANGES_S, last
from dashboard.request.zones import Zone
from lagloss.wire.format import WINDOW_S
from lagloss_server.base.errors import BadSpan
from lagloss_server.base.times import parse_any_time_s
from lagloss_server.model.time_range import TimeRange

Unit = Literal["week", "month", "quarter"]
PRESETS: Final = (
    "this-week",
    "last-week",
    "this-month",
    "last-month",
    "this-quarter",
    "last-quarter",
)
DEFAULT: Final = "last-month"
_RELATIVE: Final = re.compile(r"(this|last)-(week|month|quarter)")
_NAMED: Final = re.compile(r"(20\d{2})-(?:W(\d{2})|(\d{2})|Q([1-4]))")


@dataclass(frozen=True, slots=True)
class CalendarRange(TimeRange):
    """A time range on whole minutes, as a time zone has it. `unit` and `name` (`month`, `2026-11`) where it is a
    week, month or quarter of the zone's calendar; else None and empty."""

    zone: str
    unit: Unit | None = None
    name: str = ""

    def document(self) -> dict[str, str | None]:
        bounds = self.bounds()
        return {"name": self.name or None, "from": bounds["from"], "to": bounds["to"], "zone": self.zone}


def named_range(text: str, zone: str, now_s: float) -> CalendarRange:
    """Return the range with a name: one of PRESETS, the last so much (`7d`), a week (`2026-W47`), a month (`2026-11`)
    or a quarter (`2026-Q4`).

    Raises:
        BadSpan, BadZone: for any other text, or an unknown zone.
    """
    if text in RANGES_S:
        range_ = last(text, now_s)
        return CalendarRange(range_.from_s, range_.to_s, zone)
    relative, named = _RELATIVE.fullmatch(text), _NAMED.fullmatch(text)
    try:
        if relative:
            unit: Unit = relative[2]  # type: ignore[assignment]  # the pattern names the units
            span = _around(unit, datetime.fromtimestamp(now_s, Zone.named(zone).info).date(), zone)
            return span if relative[1] == "this" else previous(span)
        if named:
            return _around(*_first_day(named), zone)
    except (ValueError, OverflowError):  # week 60, month 13
        pass
    expected = f"{', '.join([*PRESETS, *RANGES_S])}, or a name such as 2026-W47, 2026-11 or 2026-Q4"
    raise BadSpan(text=text[:100], expected=expected)


def between(from_: str, to: str, zone: str, now_s: float) -> CalendarRange:
    """Return the range between two moments: RFC 3339, relative (`-7d`) or `now`; one without offset is in the zone.

    Raises:
        BadTime, BadSpan: for anything else, for an empty range or one of more than 800 days.
    """
    from_s, to_s = (
        ceil(parse_any_time_s(text, now_s, Zone.named(zone).info) / WINDOW_S) * WINDOW_S for text in (from_, to)
    )
    if not 0 < to_s - from_s <= MAX_SPAN_S or from_s < 0 or to_s > now_s + MAX_SPAN_S:
        raise BadSpan(text=f"{from_[:40]} to {to[:40]}", expected="1 minute to 800 days, around the present")
    return CalendarRange(from_s, to_s, zone)


def choose(range_: str | None, from_: str | None, to: str | None, zone: str, now_s: float) -> CalendarRange:
    """Return the range that was asked for: by its name, or from (and to, else now); by default the last month.

    Raises:
        BadTime, BadSpan: both ways at once, or one that makes no sense.
    """
    Zone.named(zone)
    if from_ is None and to is None:
        return named_range(range_ or DEFAULT, zone, now_s)
    if range_ is not None:
        raise BadSpan(text=range_[:40], expected="a range, or from and to, but not both")
    if from_ is None:
        raise BadSpan(text=(to or "")[:40], expected="`from` together with `to`")
    return between(from_, to or "now", zone, now_s)


def previous(span: CalendarRange) -> CalendarRange:
    """Return the range before it: the week, month or quarter before; else as many whole days of the zone, or as
    long."""
    if span.unit is not None:
        return _around(span.unit, _local(span.from_s, span.zone).date() - timedelta(days=1), span.zone)
    first, end = _local(span.from_s, span.zone), _local(span.to_s, span.zone)
    if all(
        _midnight_s(end_s.date(), span.zone) == moment for end_s, moment in ((first, span.from_s), (end, span.to_s))
    ):
        days = end.date() - first.date()
        return CalendarRange(_midnight_s(first.date() - days, span.zone), span.from_s, span.zone)
    return CalendarRange(2 * span.from_s - span.to_s, span.from_s, span.zone)


def local_midnights(span: CalendarRange) -> list[int]:
    """Return the days of the zone that begin within the range, after its start: epoch s, ascending."""
    day, midnights = _local(span.from_s, span.zone).date(), list[int]()
    while (midnight_s := _midnight_s(day := day + timedelta(days=1), span.zone)) < span.to_s:
        if midnight_s > (midnights[-1] if midnights else span.from_s):  # a zone may skip a day
            midnights.append(midnight_s)
    return midnights


def day_edges(span: CalendarRange) -> list[int]:
    """Return where the days of the range begin and end: 23 to 25 hours from edge to edge, less at the rims."""
    return [span.from_s, *local_midnights(span), span.to_s]


def _around(unit: Unit, day: date, zone: str) -> CalendarRange:
    """Return the week, month or quarter of a day."""
    if unit == "week":
        first = day - timedelta(days=day.weekday())
        end, (year, week, _) = first + timedelta(days=7), first.isocalendar()
        name = f"{year}-W{week:02}"
    elif unit == "month":
        first = day.replace(day=1)
        end, name = _first_of_next_month(first), f"{first.year}-{first.month:02}"
    else:
        quarter = (day.month - 1) // 3
        first = date(day.year, 3 * quarter + 1, 1)
        end, name = _first_of_next_month(date(day.year, 3 * quarter + 3, 1)), f"{day.year}-Q{quarter + 1}"
    return CalendarRange(_midnight_s(first, zone), _midnight_s(end, zone), zone, unit, name)


def _first_day(named: re.Match[str]) -> tuple[Unit, date]:
    year, week, month, quarter = named.groups()
    if week:
        return "week", date.fromisocalendar(int(year), int(week), 1)
    if month:
        return "month", date(int(year), int(month), 1)
    return "quarter", date(int(year), 3 * int(quarter) - 2, 1)


def _first_of_next_month(first: date) -> date:
    return (first + timedelta(days=31)).replace(day=1)


def _midnight_s(day: date, zone: str) -> int:
    """Return when a day begins; where its midnight is skipped or comes twice, at the first moment of the day."""
    return ceil(datetime(day.year, day.month, day.day, tzinfo=Zone.named(zone).info).timestamp() / WINDOW_S) * WINDOW_S


def _local(moment_s: float, zone: str) -> datetime:
    return datetime.fromtimestamp(moment_s, Zone.named(zone).info)
