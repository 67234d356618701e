"""Everything that the page of one pipeline shows over a span."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dashboard.reads.condition import Condition, Freshness, condition, read_freshness
from dashboard.reads.happenings import Happenings, read_happenings
from dashboard.reads.series import Series, read_series
from dashboard.span import Span
from lagloss.store import Store, StoredPipeline
from lagloss.wire import WINDOW_S


@dataclass(frozen=True, slots=True)
class Panels:
    """`newest`: the document of the newest closed window, in the span or not; None before there is one."""

    stored: StoredPipeline
    series: Series
    happenings: Happenings
    fresh: Freshness
    newest: dict[str, Any] | None
    condition: Condition

    def document(self) -> dict[str, Any]:
        return {
            **self.series.document(),
            **self.happenings.document(),
            "condition": self.condition,
            "freshness": self.fresh.document(),
        }


def read_panels(store: Store, pipeline: str, span: Span, now_s: float) -> Panels:
    """What there is to draw of this pipeline, and how old it is.

    Raises:
        UnknownPipeline: there is none of this name.
    """
    stored = store.pipeline(pipeline)
    series = read_series(store, stored, span, now_s)
    fresh = read_freshness(store, pipeline, now_s)
    newest = None
    if fresh.newest_s is not None:
        newest = next(iter(store.windows(pipeline, fresh.newest_s, fresh.newest_s + WINDOW_S)), None)
    found = condition(
        fresh,
        stored.definition.spec.grace / 1_000,
        now_s,
        bool(series.buckets),
        ends_now=span.from_s <= now_s <= span.to_s,
    )
    return Panels(stored, series, read_happenings(store, pipeline, span), fresh, newest, found)
