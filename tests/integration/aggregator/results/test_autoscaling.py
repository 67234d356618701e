"""What deploy/autoscaling asks of Prometheus: each query of its files in a real one that scrapes a real /metrics."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from wsgiref.simple_server import make_server

import pytest
import yaml
from prometheus_client import make_wsgi_app

from aggregator.metrics import AggregatorMetrics
from aggregator.node_groups import NodeGroup, PartitionLag
from aggregator.results.metrics import PipelineResult
from tests.fakes.prometheus import Prometheus, run_prometheus
from tests.integration.aggregator.results.test_grafana import LAGS, Quiet
from tests.support.kafka_log import wait_for
from tests.support.window_documents import clicks, document, window_of

FOLDER = Path(__file__).parents[4] / "deploy" / "autoscaling"
WINDOW_S = 60


def keda(text: str) -> dict[str, str]:
    """Return the queries of a ScaledObject by the names of their triggers."""
    document: dict[str, Any] = yaml.safe_load(text)
    assert document["kind"] == "ScaledObject"
    triggers = document["spec"]["triggers"]
    assert {trigger["metadata"]["ignoreNullValues"] for trigger in triggers} == {"false"}
    assert all(float(trigger["metadata"]["threshold"]) > 0 for trigger in triggers)
    return {trigger["name"]: trigger["metadata"]["query"] for trigger in triggers}


def hpa(text: str, adapter: str) -> dict[str, str]:
    """Return the queries that the adapter makes of an HPA's metrics, by their names."""
    document: dict[str, Any] = yaml.safe_load(text)
    assert document["kind"] == "HorizontalPodAutoscaler"
    rules = {rule["name"]["as"]: rule for rule in yaml.safe_load(adapter)["rules"]["external"]}
    metrics = [metric["external"]["metric"] for metric in document["spec"]["metrics"]]
    assert {metric["name"] for metric in metrics} == rules.keys()
    return {metric["name"]: rendered(rules[metric["name"]], metric["selector"]["matchLabels"]) for metric in metrics}


def rendered(rule: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    series = rule["seriesQuery"].removeprefix('{__name__="').removesuffix('"}')
    matchers = ",".join(f'{name}="{value}"' for name, value in labels.items())
    query: str = rule["metricsQuery"].replace("<<.Series>>", series).replace("<<.LabelMatchers>>", matchers)
    assert "<<" not in query
    return query


def of_clicks(text: str) -> str:
    """Return a file with the names that the test has."""
    replaced = text.replace("orders-enrich", "clicks.conn-ga").replace('"orders"', '"clicks"')
    return replaced.replace("pipeline: orders", "pipeline: clicks")


def queries(text_of: Any = of_clicks) -> dict[str, str]:
    texts = {name: text_of((FOLDER / f"{name}.yaml").read_text()) for name in ("keda", "hpa", "prometheus-adapter")}
    return keda(texts["keda"]) | hpa(texts["hpa"], texts["prometheus-adapter"])


def result(start_s: int, **more: Any) -> PipelineResult:
    return PipelineResult(window_of(document(clicks(), start_s, lags_ms=LAGS, **more)), {}, clicks().spec.sla)


@pytest.fixture(scope="module")
def metrics() -> AggregatorMetrics:
    return AggregatorMetrics()


@pytest.fixture(scope="module")
def prometheus(metrics: AggregatorMetrics, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with make_server("127.0.0.1", 0, make_wsgi_app(metrics.registry), handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            folder = tmp_path_factory.mktemp("autoscaling")
            with run_prometheus(folder, f"127.0.0.1:{server.server_port}") as running:
                wait_for(lambda: running.values("up") == [1.0], what="a scrape")
                yield running
        finally:
            server.shutdown()
            thread.join(10)


def of_last_minute() -> int:
    return int(time.time()) // WINDOW_S * WINDOW_S - 2 * WINDOW_S


def test_each_query_returns_one_number(prometheus: Prometheus, metrics: AggregatorMetrics) -> None:
    group = NodeGroup("clicks", "conn-ga", "clicks.conn-ga")
    metrics.consumer_lag([PartitionLag(group, "clicks.ga", at, 5, 12_000 * at) for at in range(3)])
    lag_s = LAGS["conn-ga.out"] / 1_000
    expected = {
        "group-seconds-behind": [24.0],
        "lagloss_group_seconds_behind": [24.0],
        "pipeline-end-to-end-lag": [lag_s],
        "lagloss_pipeline_lag_seconds": [lag_s],
    }
    with metrics.showing(lambda: {"clicks": result(of_last_minute())}):

        def answers() -> bool:
            found = {name: prometheus.values(query) for name, query in queries().items()}
            assert found.keys() == expected.keys()
            return found == expected

        wait_for(answers, what="the numbers")


@pytest.mark.parametrize("start_s", [0, of_last_minute() - 1_200], ids=["long ago", "twenty minutes ago"])
def test_there_is_no_number_where_nothing_is_known(
    prometheus: Prometheus, metrics: AggregatorMetrics, start_s: int
) -> None:
    assert {tuple(prometheus.values(query)) for query in queries(lambda text: text).values()} == {()}  # other names
    metrics.consumer_lag(())
    with metrics.showing(lambda: {"clicks": result(start_s)}):
        wait_for(
            lambda: {tuple(prometheus.values(query)) for query in queries().values()} == {()}, what="no number any more"
        )


def test_a_minute_without_messages_has_a_lag_of_0(prometheus: Prometheus, metrics: AggregatorMetrics) -> None:
    idle = document(clicks(), of_last_minute(), messages=0, verdict="idle")
    with metrics.showing(lambda: {"clicks": PipelineResult(window_of(idle), {}, clicks().spec.sla)}):
        by_lag = [query for query in queries().values() if "e2e_lag" in query]
        assert len(by_lag) == 2
        wait_for(lambda: {tuple(prometheus.values(query)) for query in by_lag} == {(0.0,)}, what="a lag of 0")
