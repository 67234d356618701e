"""Metrics of the canary: every name is declared here and described in docs/metrics.md."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

from canary.witness import Judgement
from lagloss_server.net.exposition import registry_of


class CanaryMetrics:
    def __init__(self) -> None:
        self.registry = registry_of("canary")
        self.ok = Gauge(
            "lagloss_canary_ok",
            "1 if the last three due minutes were right, and the last of them lately; 0 if not, or of a stand-by",
            registry=self.registry,
        )
        self._minutes = Counter(
            "lagloss_canary_minutes",
            "Minutes by verdict: right, late, wrong, or not due",
            ["verdict"],
            registry=self.registry,
        )
        self._losses = Counter(
            "lagloss_canary_losses",
            "Losses of these minutes: shown to lagloss, named by it, invented by it",
            ["losses"],
            registry=self.registry,
        )
        self.heartbeats = Counter(
            "lagloss_canary_heartbeats",
            "Requests to the heartbeat's URLs, by kind (ok or fail) and outcome (sent or failed)",
            ["kind", "outcome"],
            registry=self.registry,
        )

    def judged(self, verdict: str, judgement: Judgement) -> None:
        """Count a minute that was judged for the first time."""
        self._minutes.labels(verdict).inc()
        self._losses.labels("shown").inc(judgement.shown)
        self._losses.labels("named").inc(judgement.named)
        self._losses.labels("invented").inc(judgement.invented)

    def excused(self, minutes: int) -> None:
        """Count minutes that are not due."""
        self._minutes.labels("not due").inc(minutes)
