"""Metrics of the aggregator: every name is declared here and described in docs/operations.md."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from aggregator.trouble import Server, Trouble
from lagloss.result import WindowResult


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._windows = Counter(
            "lagloss_windows_closed",
            "Windows closed, by verdict and proof",
            ["verdict", "proof"],
            registry=self.registry,
        )
        self._revised = Counter(
            "lagloss_windows_revised", "Closings that changed a window's result", registry=self.registry
        )
        self._beacons = Counter("lagloss_beacons_read", "Beacons read to close windows", registry=self.registry)
        self._records = Counter(
            "lagloss_block_records_read", "Records of the beacons topic that reads spanned", registry=self.registry
        )
        self._seconds = Histogram(
            "lagloss_closing_seconds", "Time one read of due windows took until its commit", registry=self.registry
        )
        self.bad_records = Gauge(
            "lagloss_bad_records", "Records set aside, by topic and reason", ["topic", "reason"], registry=self.registry
        )
        self._waiting = Gauge(
            "lagloss_waiting_seconds",
            "How long nothing has been followed or closed, by what is waited for; 0 when all is well",
            ["server"],
            registry=self.registry,
        )
        self.caught_up_seconds = Gauge(
            "lagloss_reports_lag_seconds", "How long ago all reports were last followed", registry=self.registry
        )

    def waiting(self, trouble: Callable[[], Trouble | None]) -> None:
        """`trouble()` tells what is waited for at the moment when the metrics are read."""

        def seconds(server: Server) -> float:
            now = trouble()
            return time.time() - now.since_s if now is not None and now.server == server else 0.0

        for server in get_args(Server):
            self._waiting.labels(server).set_function(functools.partial(seconds, server))

    def window(self, result: WindowResult, revision: int) -> None:
        """A closing made this result, a first or a changed one."""
        if revision > 1:
            self._revised.inc()
        self._windows.labels(result.verdict or "unknown", result.proof).inc()

    def closed(self, windows: int, beacons: int, seconds: float) -> None:
        if windows:
            self._seconds.observe(seconds)
        self._beacons.inc(beacons)

    def read(self, records: int) -> None:
        self._records.inc(records)
