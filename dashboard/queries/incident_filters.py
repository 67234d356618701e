"""Which incidents are asked for: the conditions that their rows, and rows about them, have to meet."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import ColumnElement

from lagloss_server.model.canary import CANARY
from lagloss_server.model.time_range import TimeRange

PAGE_SIZE: Final = 50
MAX_PAGE: Final = 10_000


@dataclass(frozen=True, slots=True)
class IncidentFilters:
    """Which incidents are asked for; None: whatever, but no pipeline that is not listed."""

    pipeline: str | None = None
    kind: str | None = None
    severity: str | None = None

    def of(self, columns: Any) -> list[ColumnElement[bool]]:
        """Return the conditions on the columns of these names."""
        criteria = {name: value for name, value in asdict(self).items() if value is not None}
        listed = [columns.pipeline.is_distinct_from(CANARY)] if self.pipeline is None else []
        return [*listed, *(columns[name] == value for name, value in criteria.items())]


def within(moment: ColumnElement[datetime], span: TimeRange) -> ColumnElement[bool]:
    """Return whether it was in the span."""
    from_, to = (datetime.fromtimestamp(epoch_s, UTC) for epoch_s in (span.from_s, span.to_s))
    return (moment >= from_) & (moment < to)
