"""Everything that the page of one pipeline shows over a span."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from dashboard.queries.annotations import Happenings, HappeningsDocument, read_happenings
from dashboard.queries.condition import Condition, Freshness, condition, read_freshness
from dashboard.queries.consumer_groups import ConsumerGroup, read_consumer_groups
from dashboard.queries.consumer_lag import ConsumerLag, read_consumer_lag
from dashboard.queries.overview import read_since
from dashboard.queries.series import Series, SeriesDocument, read_series
from dashboard.queries.sla_periods import SlaPeriods, sla_periods_of
from dashboard.queries.taps import TapStatus, read_taps
from lagloss.wire.format import WINDOW_S
from lagloss_server.incidents.lost_afterwards import LostMinute
from lagloss_server.incidents.lost_afterwards_store import read_lost_minutes
from lagloss_server.model.definition import Sla, StoredPipeline, in_force
from lagloss_server.model.time_range import TimeRange
from lagloss_server.model.window import ListedWindow
from lagloss_server.store.store import Store

_OF_SOURCE: Final = (
    *("messages", "delivered", "filtered", "dead", "pending"),
    *("lost", "loss_ratio", "on_time_share", "on_time_of", "e2e_lag_ms"),
)
"""Numbers of a window that a source has, too."""


class PanelsDocument(SeriesDocument, HappeningsDocument):
    """What the page of a pipeline shows over a range, and how recent what is known of it is."""

    condition: Condition
    freshness: Freshness


@dataclass(frozen=True, slots=True)
class Panels:
    """`newest`: the newest closed window, in the span or not; None before there is one. `sla_periods`: what was
    promised over the span; `newest_sla`, when that window began; `since_s`: since when its verdict has held without a
    break (epoch s), None if for longer than `read_since` looks back."""

    stored: StoredPipeline
    series: Series
    consumer_lag: ConsumerLag
    groups: list[ConsumerGroup]
    taps: list[TapStatus]
    lost_afterwards: list[LostMinute]
    sla_periods: SlaPeriods
    happenings: Happenings
    fresh: Freshness
    newest: ListedWindow | None
    newest_sla: Sla
    condition: Condition
    since_s: int | None

    def from_source(self, source: str) -> Panels:
        """Return what the page shows of one source's messages: numbers over time and of the newest window. Verdicts,
        places and hops stay those of the pipeline."""
        newest = self.newest
        row = None if newest is None else next((row for row in newest.sources if row.name == source), None)
        if newest is not None and row is not None:
            counts = {name: getattr(row, name) for name in _OF_SOURCE}
            newest = structs.replace(newest, **counts)
        return replace(self, series=self.series.from_source(source), newest=newest)

    def document(self) -> PanelsDocument:
        return {
            **self.series.document(),
            **self.happenings.document(),
            "condition": self.condition,
            "freshness": self.fresh,
        }


def read_panels(store: Store, pipeline: str, span: TimeRange, now_s: float) -> Panels:
    """Read the series of this pipeline's panels, and their age.

    Raises:
        UnknownPipeline: there is none of this name.
    """
    versions = store.versions_of(pipeline)
    stored = versions[-1]
    series = read_series(store, stored, span, now_s)
    fresh = read_freshness(store, pipeline, now_s)
    newest = None
    if fresh.newest_s is not None:
        newest = next(iter(store.windows(pipeline, fresh.newest_s, fresh.newest_s + WINDOW_S)), None)
    condition_ = condition(
        fresh,
        stored.definition.spec.grace,
        now_s,
        bool(series.buckets),
        ends_now=span.from_s <= now_s <= span.to_s,
    )
    with store.engine.connect() as connection:
        lost_afterwards = read_lost_minutes(connection, pipeline, span.from_s, span.to_s)
    judged_by = versions[-1 if fresh.newest_s is None else in_force(versions, fresh.newest_s)].definition
    return Panels(
        stored=stored,
        series=series,
        consumer_lag=read_consumer_lag(store, stored, span, "node"),
        groups=read_consumer_groups(store, stored, span, now_s),
        taps=read_taps(store, [stored.definition], now_s),
        lost_afterwards=lost_afterwards,
        sla_periods=sla_periods_of(versions, span),
        happenings=read_happenings(store, pipeline, span),
        fresh=fresh,
        newest=newest,
        newest_sla=judged_by.spec.sla,
        condition=condition_,
        since_s=_since_s(store, pipeline, fresh),
    )


def _since_s(store: Store, pipeline: str, fresh: Freshness) -> int | None:
    if fresh.newest_s is None or fresh.verdict is None:
        return None
    return read_since(store, [(pipeline, fresh.newest_s, fresh.verdict)]).get(pipeline)
