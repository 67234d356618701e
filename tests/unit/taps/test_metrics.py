"""Metrics of taps: a process shows how far it reads the taps that it owns, and no others."""

from __future__ import annotations

from lagloss_server.model.expressions import IdExpression, TimeExpression
from lagloss_server.model.taps import Extraction, Tap
from taps.kernel import Blocks
from taps.metrics import TapMetrics
from taps.plan import Look, PartitionLog, TapPlan
from taps.records import TapCounts

TAPS = [
    Tap(
        "orders",
        node,
        "",
        "in",
        None,
        ("out",),
        Extraction(IdExpression.parse("$.id"), TimeExpression.parse("$.at")),
        first=True,
    )
    for node in ("a", "b")
]


def shown(metrics: TapMetrics, name: str) -> dict[str, float]:
    """Values by node."""
    return {
        sample.labels["node"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == name
    }


def test_a_tap_that_this_process_left_does_not_fall_behind_in_its_metrics() -> None:
    metrics = TapMetrics()
    for tap in TAPS:
        metrics.count(tap, Blocks(counts=TapCounts(seen=3)), TapPlan(1, 0, 1, 1, through_ms=60_000))
        look = Look(60_000, {0: PartitionLog(0, 10, 12), 1: PartitionLog(0, 2, 2)})
        metrics.looked(tap, look, TapPlan(1, 0, 1, 1, positions={0: 3, 1: 2}))
    metrics.left(TAPS[0])
    assert shown(metrics, "lagloss_taps_through_timestamp_seconds") == {"b": 60.0}
    assert shown(metrics, "lagloss_taps_records_total") == {"a": 3.0, "b": 3.0}
    metrics.left(TAPS[0])
    assert shown(metrics, "lagloss_taps_unread") == {"b": 7.0}
    metrics.count(TAPS[0], Blocks(), TapPlan(2, 0, 1, 1, through_ms=120_000))
    assert shown(metrics, "lagloss_taps_through_timestamp_seconds") == {"a": 120.0, "b": 60.0}
    replaced = TapPlan(3, 0, 1, 1, through_ms=180_000, positions={0: 1}, ends_ms=60_000)
    metrics.count(TAPS[0], Blocks(counts=TapCounts(seen=1)), replaced)
    metrics.looked(TAPS[0], Look(60_000, {0: PartitionLog(0, 10, 12)}), replaced)
    assert shown(metrics, "lagloss_taps_through_timestamp_seconds") == {"a": 120.0, "b": 60.0}
    assert shown(metrics, "lagloss_taps_records_total") == {"a": 4.0, "b": 3.0}
    assert shown(metrics, "lagloss_taps_unread") == {"b": 7.0}
