"""Addresses of pages: all that a view is made of stands in them, so that a link shows another person the same view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode

from dashboard.request.shown_range import ShownRange
from dashboard.request.zones import Zone
from lagloss.wire.format import WINDOW_S
from lagloss_server.model.window import rfc3339

API: Final = "/api/v1"
MCP: Final = "/mcp"
OVERVIEW: Final = "/"
ALERTS: Final = "/alerts"
HEALTH: Final = "/health"
GROUPS: Final = "/groups"
MESSAGES: Final = "/messages"
COVERAGE: Final = "/coverage"
PORTFOLIO: Final = "/portfolio"
AUDIT: Final = "/audit"
STATIC: Final = ("/_dash-component-suites/", "/assets/")
"""Below these are the program's own files, the same for everybody. Nothing else."""
_RANGE: Final = ("range", "from", "to")
"""Parameters that name a range."""
CARRIED: Final = ("zone", *_RANGE)
"""Parameters that go along from page to page: how the reader looks, not at what."""


@dataclass(frozen=True, slots=True)
class Address:
    """A page's path (not escaped) and its query, one value a key."""

    path: str = OVERVIEW
    query: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, pathname: str | None, search: str | None) -> Address:
        """Parse the browser's location; the last value of a repeated key counts."""
        return cls(unquote(pathname or OVERVIEW), dict(parse_qsl((search or "").removeprefix("?"))))

    @property
    def search(self) -> str:
        """With its question mark; empty without a query."""
        return f"?{urlencode(self.query, safe=':/')}" if self.query else ""

    @property
    def href(self) -> str:
        """As people type it: to a browser, a path with `%3A` is another one than that with `:`, whose page it mounts
        anew."""
        return quote(self.path, safe="/:") + self.search

    @property
    def zone(self) -> Zone:
        return Zone.shown(self.query.get("zone"))

    @property
    def names_range(self) -> bool:
        return not self.query.keys().isdisjoint(_RANGE)

    def asking(self, **changes: str | None) -> Address:
        """Return the same page with these in its query; None takes one out. `from` is written `from_`."""
        query = dict(self.query)
        for name, value in changes.items():
            key = name.rstrip("_")
            if value is None:
                query.pop(key, None)
            else:
                query[key] = value
        return Address(self.path, query)

    def over(self, span: ShownRange) -> Address:
        """Return the same page over this span."""
        query = {key: value for key, value in self.query.items() if key not in _RANGE}
        return Address(self.path, {**query, **span.query()})

    def named(self, range_: str | None) -> Address:
        """Return the same page over the range of this name; None: over the one that it shows by default."""
        return self.asking(range=range_, from_=None, to=None)

    def between(self, from_: str, to: str) -> Address:
        """Return the same page over the whole minutes between two moments, in either order, as date pickers hold them.
        Of an hour that comes twice it reaches over both."""
        early, late = sorted((from_, to), key=self.zone.parse)
        moments = (self.zone.parse(early), self.zone.parse(late, later=True))
        from_s, to_s = (int(moment) // WINDOW_S * WINDOW_S for moment in moments)
        return self.over(ShownRange(from_s, max(to_s, from_s + WINDOW_S)))

    def to(self, path: str, **query: str | None) -> Address:
        """Another page, looked at in the same way: the zone and the span go along."""
        carried = {key: value for key, value in self.query.items() if key in CARRIED}
        return Address(path, carried).asking(**query)


def pipeline(name: str) -> str:
    return f"/pipelines/{name}"


def window(name: str, window_start_s: int) -> str:
    return f"/pipelines/{name}/windows/{rfc3339(window_start_s)}"


def window_data(name: str, window_start_s: int, what: str, /, **query: str | None) -> str:
    """Return the API's `matrix`, `difference`, `export` or `revisions` of a window; `from` is written `from_`."""
    parameters = {key.rstrip("_"): value for key, value in query.items() if value}
    return f"{API}/pipelines/{quote(name)}/windows/{rfc3339(window_start_s)}/{what}?{urlencode(parameters, safe=':')}"


def message(name: str) -> str:
    """Return the search for messages of a pipeline; its query's `id` is the one that is shown."""
    return f"/pipelines/{name}/messages"


def runs(name: str) -> str:
    """Return the runs of a pipeline's jobs; its query's `dag` and `run` are the one that is drawn."""
    return f"/pipelines/{name}/runs"


def report(name: str) -> str:
    return f"/pipelines/{name}/report"


def portfolio(match: str, zone: str, span: ShownRange) -> Address:
    """Return the page of the pipelines that match (all of an empty text) over a span."""
    return Address(PORTFOLIO, {"zone": zone, **({"match": match} if match else {})}).over(span)


def incident(incident_id: str) -> str:
    return f"/incidents/{incident_id}"


def windows_of(name: str, from_s: int, to_s: int) -> str:
    """Return the API's windows that figures over [from_s, to_s) come from."""
    return _api_over(name, "windows", from_s, to_s)


def sums_of(name: str, from_s: int, to_s: int) -> str:
    """Return the API's sums over [from_s, to_s), which are kept for longer than windows."""
    return _api_over(name, "panels", from_s, to_s)


def _api_over(name: str, what: str, from_s: int, to_s: int) -> str:
    query = urlencode({"from": rfc3339(from_s), "to": rfc3339(to_s)}, safe=":")
    return f"{API}/pipelines/{quote(name)}/{what}?{query}"
