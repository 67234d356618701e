"""Metrics of taps: every name is declared here and described in docs/metrics.md."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from prometheus_client import Counter, Gauge

from lagloss_server.model.tables import AnyTap
from lagloss_server.net.exposition import SetAsideCounts, registry_of
from taps.kernel import Blocks
from taps.plan import Look, TapPlan
from taps.records import UnreadableRecords

_LABELS = ("pipeline", "node", "source")


class TapMetrics:
    def __init__(self) -> None:
        self.registry = registry_of("taps")
        self.set_aside = SetAsideCounts(self.registry)
        self.running = Gauge("lagloss_taps_owned", "Taps that this process owns", registry=self.registry)
        self._records = Counter("lagloss_taps_records", "Records read", _LABELS, registry=self.registry)
        self._beacons = Counter("lagloss_taps_beacons", "Beacons sent", _LABELS, registry=self.registry)
        self._unreadable = Counter(
            "lagloss_taps_unreadable", "Records that could not be read", (*_LABELS, "reason"), registry=self.registry
        )
        self._gone = Counter(
            "lagloss_taps_gone", "Offsets deleted by retention before they were read", _LABELS, registry=self.registry
        )
        self._waits = Counter("lagloss_taps_waits", "Failed attempts, by tap", _LABELS, registry=self.registry)
        self._compared = Counter(
            "lagloss_taps_rows_compared", "Rows of tables that were compared again", _LABELS, registry=self.registry
        )
        self._lost_afterwards = Counter(
            "lagloss_taps_lost_afterwards",
            "Messages whose rows were in a table and are not any more",
            _LABELS,
            registry=self.registry,
        )
        self._returned = Counter(
            "lagloss_taps_returned",
            "Messages that were lost afterwards and whose rows are there again",
            _LABELS,
            registry=self.registry,
        )
        self._recheck_failures = Counter(
            "lagloss_taps_recheck_failures", "Comparisons that failed", _LABELS, registry=self.registry
        )
        self._through = Gauge(
            "lagloss_taps_through_timestamp_seconds",
            "Time up to which all observations are sent, in seconds since the epoch",
            _LABELS,
            registry=self.registry,
        )

        self._unread = Gauge(
            "lagloss_taps_unread",
            "Offsets before the end of the topic that are not planned yet",
            _LABELS,
            registry=self.registry,
        )

    def looked(self, tap: AnyTap, look: Look, plan: TapPlan) -> None:
        """Show how much a topic holds beyond a plan; of a tap that was replaced, the other is shown."""
        if plan.ends_ms is not None:
            return
        unread = sum(max(0, log.stable_end - plan.positions[partition]) for partition, log in look.logs.items())
        self._unread.labels(tap.pipeline, tap.node, tap.source).set(unread)

    def count(self, tap: AnyTap, blocks: Blocks, plan: TapPlan) -> None:
        """Count a plan that was carried out."""
        labels = (tap.pipeline, tap.node, tap.source)
        self._records.labels(*labels).inc(blocks.counts.seen)
        self._beacons.labels(*labels).inc(sum(block.increment.beacons for block in blocks.blocks))
        self._gone.labels(*labels).inc(blocks.counts.gone)
        self.count_unreadable(tap, blocks.counts.unreadable)
        if plan.ends_ms is None:
            self._through.labels(*labels).set(plan.through_ms / 1_000)

    def count_unreadable(self, tap: AnyTap, unreadable: Mapping[str, UnreadableRecords]) -> None:
        """Count records that could not be read, by reason."""
        for reason, records in unreadable.items():
            self._unreadable.labels(tap.pipeline, tap.node, tap.source, reason).inc(records.count)

    def count_recheck(self, tap: AnyTap, rows: int, lost: int, returned: int) -> None:
        """Count a comparison: rows, messages that it states as lost afterwards, and those that it takes back."""
        labels = (tap.pipeline, tap.node, tap.source)
        self._compared.labels(*labels).inc(rows)
        self._lost_afterwards.labels(*labels).inc(lost)
        self._returned.labels(*labels).inc(returned)

    def recheck_failed(self, tap: AnyTap) -> None:
        """Count a comparison that failed."""
        self._recheck_failures.labels(tap.pipeline, tap.node, tap.source).inc()

    def left(self, tap: AnyTap) -> None:
        """Show no longer how far a tap is read that this process does not own any more, or that was replaced: else it
        would fall behind."""
        for gauge in (self._through, self._unread):
            with suppress(KeyError):  # it never owned it
                gauge.remove(tap.pipeline, tap.node, tap.source)

    def waits(self, tap: AnyTap) -> None:
        """Count a try that failed."""
        self._waits.labels(tap.pipeline, tap.node, tap.source).inc()
