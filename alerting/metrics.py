"""Metrics of the alerter: every name is declared here and described in docs/operations.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from lagloss_server.net.exposition import Recent, SetAsideCounts, registry_of


class AlertingMetrics:
    def __init__(self) -> None:
        self.registry = registry_of("alerting")
        self.set_aside = SetAsideCounts(self.registry)
        self.leading = Gauge(
            "lagloss_alerting_leading", "1 if this alerter is the leader, else 0", registry=self.registry
        )
        self.incidents = Gauge(
            "lagloss_alerting_incidents_open",
            "Open incidents, by pipeline, kind of rule and severity",
            ["pipeline", "kind", "severity"],
            registry=self.registry,
        )
        self._changes = Counter(
            "lagloss_alerting_incident_changes",
            "Changes of incidents, by rule and change",
            ["rule", "change"],
            registry=self.registry,
        )
        self.evaluation = Histogram(
            "lagloss_alerting_evaluation_seconds",
            "Time to evaluate one pipeline",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self.registry,
        )
        self.failed_evaluations = Counter(
            "lagloss_alerting_evaluations_failed",
            "Failed evaluations of a pipeline",
            ["pipeline"],
            registry=self.registry,
        )
        self.evaluated_at = Gauge(
            "lagloss_alerting_evaluated_timestamp_seconds",
            "When all pipelines were last evaluated, seconds since the epoch",
            registry=self.registry,
        )
        self._notifications = Counter(
            "lagloss_alerting_notifications",
            "Attempts to notify, by receiver and outcome: sent, failed (permanently) or retried",
            ["receiver", "outcome"],
            registry=self.registry,
        )
        self._sending = Histogram(
            "lagloss_alerting_sending_seconds", "Time a receiver took to respond", ["receiver"], registry=self.registry
        )
        self._delivery = Histogram(
            "lagloss_alerting_delivery_seconds",
            "Time from the commit of an incident's change to the receiver's response",
            ["receiver"],
            buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3_600),
            registry=self.registry,
        )
        self._count_waiting: Callable[[], Mapping[str, int]] = dict
        self.registry.register(_Waiting(lambda: self._count_waiting()))

    def changed(self, changes: list[str]) -> None:
        """Count changes, `RULE CHANGE` each."""
        for change in changes:
            rule, _, what = change.rpartition(" ")
            self._changes.labels(rule, what).inc()

    def notified(self, receiver: str, outcome: str, count: int, took_s: float, age_s: float) -> None:
        self._notifications.labels(receiver, outcome).inc(count)
        self._sending.labels(receiver).observe(took_s)
        if outcome == "sent":
            self._delivery.labels(receiver).observe(age_s + took_s)

    def waiting(self, count: Callable[[], Mapping[str, int]]) -> None:
        """Set the function that counts waiting notifications by receiver; it may ask PostgreSQL."""
        self._count_waiting = count


class _Waiting(Collector):
    def __init__(self, count: Callable[[], Mapping[str, int]]) -> None:
        self._recent: Recent[Mapping[str, int]] = Recent(count, {})

    def describe(self) -> Iterator[Metric]:
        """Name the metric without counting anything."""
        yield self._family({})

    def collect(self) -> Iterator[Metric]:
        yield self._family(self._recent.get())

    def _family(self, counts: Mapping[str, int]) -> Metric:
        family = GaugeMetricFamily(
            "lagloss_alerting_notifications_waiting", "Notifications not sent yet, by receiver", labels=["receiver"]
        )
        for receiver, count in counts.items():
            family.add_metric([receiver], count)
        return family
