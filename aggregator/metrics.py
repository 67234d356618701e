"""Metrics of the aggregator: every name is declared here and described in docs/operations.md."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, get_args

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from aggregator.node_groups import GROUP_LABELS, NodeGroup, PartitionLag
from aggregator.outage import Outage, Server
from aggregator.results.metrics import PipelineResult
from aggregator.results.newest import MAX_SERIES, ResultMetrics
from lagloss_server.groups.consumer_groups import GroupDescription
from lagloss_server.groups.velocity import Status
from lagloss_server.model.window import Window
from lagloss_server.net.exposition import SetAsideCounts, registry_of

_PARTITION: Final = (*GROUP_LABELS, "topic", "partition")
_STATUS_NUMBERS: Final[dict[Status, int]] = {
    "ok": 0,
    "warning": 1,
    "stalled": 2,
    "stopped": 3,
    "not committed": -1,
    "beyond the end": -2,
}
_NEWEST: Final[tuple[tuple[str, str, Callable[[PartitionLag], float | None]], ...]] = (
    (
        "offsets",
        "Offsets by which a node's consumer group is behind the end of the log; for a queue, messages waiting in it",
        lambda lag: lag.offsets,
    ),
    (
        "seconds",
        "Age of the event time of the next record to consume",
        lambda lag: None if lag.behind_ms is None else lag.behind_ms / 1_000,
    ),
    ("in_flight", "Messages of a node's queue that are received but not deleted", lambda lag: lag.in_flight),
    (
        "commits_per_second",
        "Offsets committed per second by the group, over 5 minutes",
        lambda lag: None if lag.progress is None else lag.progress.velocity.commits_per_s,
    ),
    (
        "appends_per_second",
        "Offsets appended per second, over 5 minutes",
        lambda lag: None if lag.progress is None else lag.progress.velocity.appends_per_s,
    ),
    (
        "status",
        "0 ok, 1 warning (the lag grows), 2 stalled, 3 stopped, -1 not committed, -2 committed beyond the end",
        lambda lag: (
            None if (progress := lag.progress) is None or not progress.status else _STATUS_NUMBERS[progress.status]
        ),
    ),
    (
        "loss_timestamp_seconds",
        "Earliest time at which retention deletes an unread message at the current rates, in seconds since the epoch",
        lambda lag: (
            None if (progress := lag.progress) is None or progress.loss_ms is None else progress.loss_ms / 1_000
        ),
    ),
    (
        "at_risk_offsets",
        "Waiting offsets from the first one that retention will delete unread at the current rates",
        lambda lag: None if lag.progress is None else lag.progress.at_risk,
    ),
)
"""Gauges of the newest consumer lag of a partition: name, help, value."""


class _ConsumerLags(Collector):
    """Metrics of the newest consumer lag, of partitions and of groups; an unknown value has none."""

    def __init__(self) -> None:
        self.newest: Sequence[PartitionLag] = ()
        self.groups: Mapping[NodeGroup, GroupDescription] = {}
        self._deleted: dict[tuple[str, ...], int] = {}
        """Offsets deleted unread of partitions that have any, the last one that had some at the end. It stays while a
        cluster is away, so that the counter goes on afterwards."""

    def take(self, newest: Sequence[PartitionLag], groups: Mapping[NodeGroup, GroupDescription]) -> None:
        """Replace what is shown, and add what was deleted unread since."""
        self.newest, self.groups = newest, groups
        for lag in newest:
            if lag.progress is not None and lag.progress.deleted_since:
                labels = _labels_of(lag)
                self._deleted[labels] = self._deleted.pop(labels, 0) + lag.progress.deleted_since
        for labels in list(self._deleted)[:-MAX_SERIES]:
            del self._deleted[labels]

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        for name, about, value_of in _NEWEST:
            gauge = GaugeMetricFamily(f"lagloss_consumer_lag_{name}", about, labels=_PARTITION)
            for lag in self.newest:
                value = value_of(lag)
                if value is not None:
                    gauge.add_metric(_labels_of(lag), value)
            yield gauge
        deleted = CounterMetricFamily(
            "lagloss_consumer_lag_deleted_unread",
            "Offsets deleted by retention before the node's consumer group committed past them",
            labels=_PARTITION,
        )
        # also 0, from which Prometheus sees the first increase; of groups that no definition names last
        judged = [lag for lag in self.newest if lag.progress is not None]
        for lag in sorted(judged, key=lambda lag: not lag.group.pipeline)[:MAX_SERIES]:
            deleted.add_metric(_labels_of(lag), self._deleted.get(_labels_of(lag), 0))
        yield deleted
        members = GaugeMetricFamily(
            "lagloss_consumer_group_members", "Consumers in a node's group", labels=GROUP_LABELS
        )
        state = GaugeMetricFamily(
            "lagloss_consumer_group_state", "1 for the current state of the group", labels=(*GROUP_LABELS, "state")
        )
        for group, lags in self.groups.items():
            members.add_metric(group.labels, lags.members)
            state.add_metric((*group.labels, lags.state), 1)
        yield from (members, state)


def _labels_of(lag: PartitionLag) -> tuple[str, ...]:
    return (*lag.group.labels, lag.topic, str(lag.partition))


class AggregatorMetrics:
    def __init__(self) -> None:
        self.registry = registry_of("aggregator")
        self._windows = Counter(
            "lagloss_windows_closed",
            "Windows closed, by verdict and proof",
            ["verdict", "proof"],
            registry=self.registry,
        )
        self._revised = Counter(
            "lagloss_windows_revised", "Times that closing a window again changed its result", registry=self.registry
        )
        self.late_for_sealed = Counter(
            "lagloss_late_for_sealed_windows",
            "Changes to tallies of sealed windows",
            registry=self.registry,
        )
        self.proofs_checked = Counter(
            "lagloss_proofs_checked", "Proven windows whose beacons were also read, as a check", registry=self.registry
        )
        self.proofs_refuted = Counter(
            "lagloss_proofs_refuted", "Checked proofs contradicted by the beacons", registry=self.registry
        )
        self._wait = Histogram(
            "lagloss_closing_wait_seconds",
            "Time from when a window was due or last changed until its commit; 0 if it was closed early",
            buckets=(0.5, 1, 2, 5, 10, 30, 60, 120, 300, 900),
            registry=self.registry,
        )
        self._beacons = Counter("lagloss_beacons_read", "Beacons read to close windows", registry=self.registry)
        self._records = Counter(
            "lagloss_block_records_read", "Records of the beacons topic within the ranges read", registry=self.registry
        )
        self._bytes = Counter(
            "lagloss_block_bytes_read", "Bytes of blocks read to close windows", registry=self.registry
        )
        self._seconds = Histogram(
            "lagloss_closing_seconds", "Time to read due windows and commit their results", registry=self.registry
        )
        self.bad_records = Gauge(
            "lagloss_bad_records",
            "Quarantined records, by topic and reason",
            ["topic", "reason"],
            registry=self.registry,
        )
        self._waiting = Gauge(
            "lagloss_waiting_seconds",
            "Time since consuming reports or closing windows stopped, by unavailable server; 0 in normal operation",
            ["server"],
            registry=self.registry,
        )
        self.caught_up_seconds = Gauge(
            "lagloss_reports_lag_seconds",
            "Time since the consumer of reports was last caught up",
            registry=self.registry,
        )
        self.clock_skew_seconds = Gauge(
            "lagloss_clock_skew_seconds",
            "Largest clock difference between a live emitter and the broker",
            registry=self.registry,
        )
        self.disk_free_ratio = Gauge(
            "lagloss_disk_free_ratio",
            "Free share of the data directory's disk: blocks or inodes, whichever is lower; the fullest of its disks",
            registry=self.registry,
        )
        self.disk_free_ratio.set(math.nan)  # unknown until the service has a directory

        self.set_aside = SetAsideCounts(self.registry)
        self.deferred = Gauge(
            "lagloss_deferred_pipelines",
            "Pipelines whose reports are deferred: too many at once, or an unreadable definition",
            registry=self.registry,
        )
        self.rollups_dirty = Gauge(
            "lagloss_rollups_dirty", "Past hours and days marked for a roll-up", registry=self.registry
        )
        self.rollups = Counter(
            "lagloss_rollups_computed", "Roll-ups computed for hours and days", registry=self.registry
        )
        self.days_dropped = Counter(
            "lagloss_days_dropped", "Day partitions dropped, by table", ["table"], registry=self.registry
        )
        self.days_kept = Gauge(
            "lagloss_days_kept", "Day partitions that exist, by table", ["table"], registry=self.registry
        )
        self.rows_pruned = Counter(
            "lagloss_rows_pruned",
            "Rows deleted from tables without partitions, by table",
            ["table"],
            registry=self.registry,
        )

        self.consumer_lag_failures = Counter(
            "lagloss_consumer_lag_failures",
            "Rounds in which a consumer lag could not be read",
            registry=self.registry,
        )
        self._consumer_lags = _ConsumerLags()
        self.registry.register(self._consumer_lags)
        self._read_results: Callable[[], dict[str, PipelineResult]] = dict
        self.results = ResultMetrics(lambda: self._read_results())
        self.registry.register(self.results)

    def consumer_lag(
        self, newest: Sequence[PartitionLag], groups: Mapping[NodeGroup, GroupDescription] | None = None
    ) -> None:
        """Replace all consumer lags and descriptions of groups; partitions and groups that are not among them lose
        their series. Add what was deleted unread since the last ones."""
        self._consumer_lags.take(newest, groups or {})

    def waiting(self, trouble: Callable[[], Outage | None]) -> None:
        """Set the callback that returns the current outage whenever the metrics are read."""

        def seconds(server: Server) -> float:
            now = trouble()
            return time.time() - now.since_s if now is not None and now.server == server else 0.0

        for server in get_args(Server):
            self._waiting.labels(server).set_function(functools.partial(seconds, server))

    @contextmanager
    def showing(self, read: Callable[[], dict[str, PipelineResult]]) -> Iterator[None]:
        """Show the results that this function reads, while the block lasts: of two aggregators, only one has them."""
        self._read_results = read
        self.results.forget()
        try:
            yield
        finally:
            self._read_results = dict
            self.results.forget()

    def window(self, result: Window, revision: int) -> None:
        """Count a result that a closing made, a first or a changed one."""
        if revision > 1:
            self._revised.inc()
        self._windows.labels(result.verdict or "unknown", result.proof).inc()

    def waited(self, ms: float) -> None:
        """Observe the time in ms from when a window was due, or last changed, to its commit; 0 for early closings."""
        self._wait.observe(max(0.0, ms / 1000))

    def closed(self, windows: int, beacons: int, seconds: float) -> None:
        if windows:
            self._seconds.observe(seconds)
        self._beacons.inc(beacons)

    def read(self, records: int, size: int) -> None:
        """Count the records in the ranges of a read, and the bytes of the wanted blocks."""
        self._records.inc(records)
        self._bytes.inc(size)
