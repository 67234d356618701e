"""Results on /metrics: those of the newest closed window, as the command line prints them, and no complaint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from sqlalchemy.exc import OperationalError

from aggregator.metrics import AggregatorMetrics
from aggregator.results import newest
from aggregator.results.metrics import RESULTS, PipelineResult
from aggregator.results.newest import ResultMetrics, read_newest
from lagloss_server.net.exposition import exposed
from lagloss_server.store.store import Store
from tests.fakes.prometheus import complaints
from tests.support.stored_windows import NOW_MS, Stored, days_ago
from tests.support.window_documents import chain, clicks, document, window_of

DOCS = Path(__file__).parents[4] / "docs" / "metrics.md"


def shown(results: dict[str, PipelineResult]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(ResultMetrics(lambda: results))
    return registry


def test_the_newest_closed_window_is_shown_and_a_revision_replaces_it(store: Store) -> None:
    stored = Stored(store=store)
    older, newer = days_ago(0, 0, 1), days_ago(0, 0, 2)
    metrics = AggregatorMetrics()

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"pipeline": "chain", **labels})

    assert value("lagloss_window_messages") is None  # nothing is shown by an aggregator that does not work
    stored.close(older, messages=50)
    stored.close(newer, messages=100, lost=7, lag_ms=20)
    with metrics.showing(lambda: read_newest(store, store.pipelines())):
        metrics.results.forget()
        assert value("lagloss_window_start_timestamp_seconds") == newer
        assert value("lagloss_window_lost_messages", bound="min") == 7
        assert value("lagloss_window_loss_ratio", bound="max") == 0.07
        assert value("lagloss_window_verdict", lagloss_window_verdict="loss") == 1
        assert value("lagloss_window_verdict", lagloss_window_verdict="ok") == 0
        assert value("lagloss_error_budget_left_ratio", objective="loss", bound="max") is not None
        stored.close(newer, messages=100, lost=3, now_ms=NOW_MS + 1)
        metrics.results.forget()
        assert value("lagloss_window_lost_messages", bound="min") == 3
        assert value("lagloss_window_revision") == 2
    metrics.results.forget()
    assert value("lagloss_window_messages") is None


def test_every_sample_is_what_the_document_says() -> None:
    lags = {"src.in": 10.0, "src.out": 20.0, "mid.in": 50.0, "mid.out": 90.0, "snk.in": 95.0, "snk.out": 120.0}
    window = document(chain(), 60, lags_ms=lags, lost={"mid": (2, 5), "src->mid": (1, 1)}, pending=4)
    registry = shown({"chain": PipelineResult(window_of(window), {}, chain().spec.sla)})

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"pipeline": "chain", **labels})

    assert value("lagloss_window_start_timestamp_seconds") == window_of(window).start_s
    assert value("lagloss_window_pending_messages") == 4
    assert value("lagloss_sla_lag_target_seconds", percentile="p95") == 5
    assert value("lagloss_window_e2e_lag_seconds", percentile="p95") == 0.12
    assert value("lagloss_node_lost_messages", node="mid", bound="max") == 5
    assert value("lagloss_link_lost_messages", source="src", target="mid", bound="min") == 1
    stacked = [value("lagloss_node_added_lag_seconds", node=name) for name in ("src", "mid", "snk")]
    stacked += [
        value("lagloss_link_added_lag_seconds", source=a, target=b) for a, b in (("src", "mid"), ("mid", "snk"))
    ]
    assert sum(part or 0 for part in stacked) == pytest.approx((lags["snk.out"] - lags["src.in"]) / 1_000)


def test_promtool_and_a_parser_of_openmetrics_have_no_complaint() -> None:
    metrics = AggregatorMetrics()
    window = document(clicks(), 60, lags_ms={"conn-ga.out": 900.0}, lost={"conn-ga": (1, 2)})
    with metrics.showing(lambda: {"clicks": PipelineResult(window_of(window), {"loss": None}, clicks().spec.sla)}):
        text, _ = exposed(metrics.registry)
        assert b"lagloss_link_lost_messages" in text
        assert complaints(text.decode()) == ""
        metrics.results.forget()
        families = {family.name for family in text_string_to_metric_families(openmetrics(metrics.registry).decode())}
    assert {metric.name for metric in RESULTS} <= families
    assert {"process_cpu_seconds", "python_info", "lagloss_build"} <= families


def test_a_pipeline_too_many_has_the_series_of_pipelines_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(name: str) -> PipelineResult:
        return PipelineResult(
            window_of({**document(chain(), 60, lost={"mid": (1, 1)}), "pipeline": name}), {}, chain().spec.sla
        )

    monkeypatch.setattr(newest, "MAX_SERIES", 60)
    registry = shown({"a": of("a"), "b": of("b")})

    def nodes(name: str) -> float | None:
        return registry.get_sample_value(
            "lagloss_node_lost_messages", {"pipeline": name, "node": "mid", "bound": "min"}
        )

    assert (nodes("a"), nodes("b")) == (1, None)
    assert registry.get_sample_value("lagloss_window_messages", {"pipeline": "b"}) == 1_000


def test_while_postgresql_is_away_nothing_old_is_shown() -> None:
    def away() -> dict[str, Any]:
        raise OperationalError("SELECT", {}, Exception("away"))

    registry = CollectorRegistry()
    registry.register(ResultMetrics(away))
    assert registry.get_sample_value("lagloss_window_messages", {"pipeline": "chain"}) is None


def test_the_page_about_metrics_is_the_table() -> None:
    rows = re.findall(r"^\| `(lagloss_\w+)` \| (.*?) \| (.+) \|$", DOCS.read_text(), re.MULTILINE)
    wanted = [(metric.name, ", ".join(f"`{label}`" for label in metric.labels), metric.text) for metric in RESULTS]
    assert rows == wanted
