"""Metrics as Prometheus reads them: a registry with what every process shows, in its text format or in OpenMetrics."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final, Generic, TypeVar

import structlog
from prometheus_client import CollectorRegistry, Counter, Info
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

import lagloss
from lagloss_server.net.shared_call import SharedCall

KEPT_S: Final = 5.0
"""Several scrapes within this time are answered by one reading."""
WAIT_S: Final = 1.0
"""Time from the beginning of a reading for which a scrape waits; a scraper waits for 10 s."""
TRUSTED_S: Final = 60.0
"""What was read longer ago would look as if it were new."""
HTTP_REFUSED: Final = Counter(
    "lagloss_http_refused",
    "Connections and requests that the HTTP server of this process refused before the service saw them, by reason.",
    ["reason"],
    registry=None,
)
"""As of garbage and memory there is one of each process, whichever registry shows it."""
_T = TypeVar("_T")
log = structlog.get_logger()


def registry_of(service: str) -> CollectorRegistry:
    """Return a registry with the metrics of this process, of Python, and of the build."""
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    registry.register(HTTP_REFUSED)
    build = Info("lagloss_build", "Version of lagloss and service of this process", registry=registry)
    build.info({"version": lagloss.__version__, "service": service})
    return registry


class SetAsideCounts(Collector):
    """Gauge of what a process has set aside, by kind, as `counts` returns it whenever the metrics are read."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.counts: Callable[[], Mapping[str, int]] = dict
        registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        gauge = GaugeMetricFamily(
            "lagloss_set_aside",
            "Unreadable rows and failed work that is skipped while the rest continues, by kind",
            labels=["kind"],
        )
        for kind, count in self.counts().items():
            gauge.add_metric([kind], count)
        yield gauge


def exposed(registry: CollectorRegistry, accept: str = "") -> tuple[bytes, str]:
    """Return the metrics in the format that an Accept header asks for, and its content type."""
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class Recent(Generic[_T]):
    """What a server said some seconds ago. Metrics are shown without it, rather than late, if it does not answer.

    Args:
        unknown: what stands for no answer.
    """

    def __init__(self, read: Callable[[], _T], unknown: _T) -> None:
        self._read = read
        self._unknown = self._value = unknown
        self._read_at = -math.inf
        self._is_readable = True
        self._reading = SharedCall(self._read_again, "metrics")

    def get(self) -> _T:
        if time.monotonic() - self._read_at > KEPT_S:
            with suppress(TimeoutError):
                self._reading.result(WAIT_S)
        return self._value if time.monotonic() - self._read_at <= TRUSTED_S else self._unknown

    def forget(self) -> None:
        self._read_at = -math.inf

    def _read_again(self) -> None:
        try:
            value, self._is_readable = self._read(), True
        except Exception as error:  # whatever it is, it must not hide the metrics that are in memory
            if self._is_readable:
                log.warning("metrics read failed", error=type(error).__name__)
            value, self._is_readable = self._unknown, False
        self._value, self._read_at = value, time.monotonic()
