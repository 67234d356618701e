"""Parameters that several routes take, checked; what is wrong with them is an error that says what was expected."""

from __future__ import annotations

import time
from typing import Annotated, Final

from fastapi import Query

from dashboard.request.shown_range import RANGES_S, ShownRange, requested_range
from dashboard.request.zones import Zone

From = Annotated[str | None, Query(alias="from", description="RFC 3339 or relative (-2h); with it, `range` is ignored")]
To = Annotated[str | None, Query(alias="to", description="RFC 3339, relative or now; by default now")]
Range = Annotated[str | None, Query(alias="range", description=f"up to now: one of {', '.join(RANGES_S)}")]
ZoneName = Annotated[str | None, Query(alias="zone", description="IANA name, for times in texts; by default UTC")]
SourceName = Annotated[
    str | None, Query(max_length=100, description="only messages of this source, if there are several")
]
MatchTexts = Annotated[
    tuple[Annotated[str, Query(max_length=1_000)], ...],
    Query(
        alias="match", max_length=20, description="matchers on `pipeline` and labels, such as team=web; all must match"
    ),
]
_NAMES: Final = ("from", "to", "range")


def span_of(from_: str | None, to: str | None, range_: str | None) -> ShownRange:
    """Raise BadTime or BadSpan (422)."""
    bounds = dict(zip(_NAMES, (from_, to, range_), strict=True))
    return requested_range({name: value for name, value in bounds.items() if value is not None}, time.time())


def zone_of(name: str | None) -> Zone:
    """Raise BadZone (422)."""
    return Zone.named(name)
