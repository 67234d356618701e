"""Every metric of the collector, declared once."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from lagloss_server.net.exposition import SetAsideCounts, registry_of


class CollectorMetrics:
    """The collector's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry_of("collector")
        self.requests = Counter(
            "lagloss_collector_requests",
            "Requests, by route and status code.",
            ["route", "status"],
            registry=self.registry,
        )
        self.beacons = Counter(
            "lagloss_collector_beacons", "Beacons acknowledged by the broker.", registry=self.registry
        )
        self.acknowledgement = Histogram(
            "lagloss_collector_acknowledgement_seconds",
            "Time from a batch's last byte to the broker's acknowledgement.",
            registry=self.registry,
        )
        self.emitters = Gauge(
            "lagloss_collector_emitters", "Nodes that the collector serves now.", registry=self.registry
        )
        self.waiting_bytes = Gauge(
            "lagloss_collector_waiting_bytes",
            "Bytes of clients' blocks and reports waiting for the broker.",
            registry=self.registry,
        )
        self.waiting_beacons = Gauge(
            "lagloss_collector_waiting_beacons",
            "Beacons in the collector's own emitters waiting for the broker.",
            registry=self.registry,
        )
        self.spans = Counter(
            "lagloss_collector_spans",
            "Spans, by what became of them: used, ignored, rejected, or unpaired with the span that produced them.",
            ["outcome"],
            registry=self.registry,
        )
        self.waiting_spans = Gauge(
            "lagloss_collector_waiting_spans",
            "Spans of consumers that wait for the span that produced their message.",
            registry=self.registry,
        )
        self.set_aside = SetAsideCounts(self.registry)
        self.knowledge_age = Gauge(
            "lagloss_collector_knowledge_age_seconds",
            "Age of the cached tokens and definitions.",
            registry=self.registry,
        )

    def count_spans(self, **outcomes: int) -> None:
        """Count spans by their outcome."""
        for outcome, number in outcomes.items():
            self.spans.labels(outcome).inc(number)
