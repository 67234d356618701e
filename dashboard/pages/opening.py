"""The range at which a page opens if its address names none: one that has data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dashboard.queries.newest import newest_data_s, newest_entry_s, newest_incident_s, newest_run_s
from dashboard.queries.services import Services
from dashboard.reports.ranges import named_range
from dashboard.request.links import Address
from dashboard.request.shown_range import DEFAULT_RANGE, RANGES_S, ShownRange
from lagloss.wire.format import WINDOW_S

RUNS_RANGE: Final = "24h"


def at_range(address: Address, newest_s: float | None, now_s: float, default: str = DEFAULT_RANGE) -> Address:
    """Return the address over the shortest range up to now, not below the default, that holds a moment; over the hour
    that ends with it, if it is older than all of them; unchanged without a moment, or if the default holds it."""
    if newest_s is None or newest_s >= now_s - RANGES_S[default] + WINDOW_S:
        return address
    for name, length_s in RANGES_S.items():
        if length_s > RANGES_S[default] and newest_s >= now_s - length_s + WINDOW_S:
            return address.named(name)
    end_s = int(newest_s) // WINDOW_S * WINDOW_S + WINDOW_S
    return address.over(ShownRange(end_s - RANGES_S[DEFAULT_RANGE], end_s))


def at_month(services: Services, params: Mapping[str, str], address: Address, now_s: float) -> Address:
    """Return the address over the current month, or over the newest one with data if that is older."""
    newest_s, current = newest_data_s(services, params.get("pipeline")), "this-month"
    zone = address.zone
    if newest_s is None or newest_s >= named_range(current, zone.name, now_s).from_s:
        return address.asking(range=current)
    return address.asking(range=f"{zone.at(newest_s):%Y-%m}")


def at_minutes(services: Services, params: Mapping[str, str], address: Address, now_s: float) -> Address:
    """Return the address over a range that holds the pipeline's newest closed minute."""
    return at_range(address, newest_data_s(services, params["pipeline"]), now_s)


def at_incidents(services: Services, _params: Mapping[str, str], address: Address, now_s: float) -> Address:
    """Return the address over a range that holds the opening of a resolved incident."""
    return at_range(address, newest_incident_s(services), now_s)


def at_entries(services: Services, _params: Mapping[str, str], address: Address, now_s: float) -> Address:
    """Return the address over a range that holds an entry of the audit trail."""
    return at_range(address, newest_entry_s(services), now_s)


def at_runs(services: Services, params: Mapping[str, str], address: Address, now_s: float) -> Address:
    """Return the address over a range, of a day at least, that holds a run of the pipeline's jobs."""
    return at_range(address, newest_run_s(services, params["pipeline"], now_s), now_s, RUNS_RANGE)
