"""Every metric of the collector, declared once."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    """The collector's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.batches = Counter(
            "lagloss_collector_batches", "Batches answered, by status code.", ["status"], registry=self.registry
        )
        self.beacons = Counter(
            "lagloss_collector_beacons", "Beacons that the broker acknowledged.", registry=self.registry
        )
        self.acknowledgement = Histogram(
            "lagloss_collector_acknowledgement_seconds",
            "Time from a batch's last byte to the broker's acknowledgement.",
            registry=self.registry,
        )
        self.emitters = Gauge("lagloss_collector_emitters", "Nodes being served.", registry=self.registry)
