"""Metrics as Prometheus reads them: a registry with what every process shows, in its text format or in OpenMetrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Info
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

import lagloss


def registry_of(service: str) -> CollectorRegistry:
    """Return a registry with the metrics of this process, of Python, and of the build."""
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    build = Info("lagloss_build", "Version and service of this process", registry=registry)
    build.info({"version": lagloss.__version__, "service": service})
    return registry


class SetAsideCounts(Collector):
    """Gauge of what a process has set aside, by kind, as `counts` returns it whenever the metrics are read."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.counts: Callable[[], Mapping[str, int]] = dict
        registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        gauge = GaugeMetricFamily("lagloss_set_aside", "Rows and work set aside alone, by kind", labels=["kind"])
        for kind, count in self.counts().items():
            gauge.add_metric([kind], count)
        yield gauge


def exposed(registry: CollectorRegistry, accept: str = "") -> tuple[bytes, str]:
    """Return the metrics in the format that an Accept header asks for, and its content type."""
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
