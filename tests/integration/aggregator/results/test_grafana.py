"""What deploy/ has for Prometheus and Grafana: queries and rules in a real Prometheus, files by Grafana's schema."""

from __future__ import annotations

import copy
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client import make_wsgi_app

from aggregator.metrics import AggregatorMetrics
from aggregator.node_groups import NodeGroup, PartitionLag, PartitionProgress
from aggregator.results.metrics import PipelineResult
from alerting.metrics import AlertingMetrics
from canary.metrics import CanaryMetrics
from deploy.grafana.build import FOLDER, dashboards
from lagloss_server.groups.consumer_groups import GroupDescription
from lagloss_server.groups.velocity import Velocity
from lagloss_server.model.expressions import IdExpression, TimeExpression
from lagloss_server.model.taps import Extraction, Tap
from lagloss_server.model.window import Interval
from lagloss_server.sums.error_budget import Budget
from taps.kernel import Blocks
from taps.metrics import TapMetrics
from taps.plan import TapPlan
from tests.fakes.prometheus import Prometheus, run_prometheus
from tests.support.kafka_log import wait_for
from tests.support.window_documents import clicks, document, window_of

RULES = Path(__file__).parents[4] / "deploy" / "prometheus" / "rules.yaml"
LAGS = {
    "col-service.in": 5.0,
    "col-service.out": 9.0,
    "event-norm.in": 20.0,
    "event-norm.out": 40.0,
    "event-router.in": 60.0,
    "event-router.out:conn-ga": 90.0,
    "conn-ga.in": 200.0,
    "conn-ga.out": 5_000.0,
}


TAP = Tap(
    "clicks",
    "col-service",
    "",
    "clicks.in",
    None,
    ("out",),
    Extraction(IdExpression.parse("$.id"), TimeExpression.parse("$.at")),
    first=True,
)


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


def result() -> PipelineResult:
    """A minute that lost 70 of 1,000, of long ago, with all that a chart can show."""
    window = document(
        clicks(), 60, verdict="loss", lags_ms=LAGS, lost={"conn-ga": (70, 80), "event-norm->event-router": (1, 1)}
    )
    lags = {"p50": 1.0, "p95": 2.0, "p99": 3.0, "max": 4.0}
    window["nodes"] = [{**node, "process_duration_ms": lags} for node in window["nodes"]]
    gone = {"due": 900, "delivered": 820, "filtered": 0, "dead": 0, "pending": 0, "lost": {"min": 70, "max": 80}}
    window["destinations"] = [{"name": "conn-ga", **gone, "on_time_share": 0.9, "e2e_lag_ms": lags}]
    return PipelineResult(
        window_of(window), {"loss": Budget(100, Interval(20, 40)), "on-time": None}, clicks().spec.sla
    )


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Scrapes the metrics of services and evaluates our rules."""
    metrics, alerting, taps, canary = AggregatorMetrics(), AlertingMetrics(), TapMetrics(), CanaryMetrics()
    group = NodeGroup("clicks", "conn-ga", "clicks.conn-ga")
    moving = PartitionProgress(Velocity(2.0, 3.0), "warning", "time", 10**13, 10**13, 5, 7, 7)
    metrics.consumer_lag(
        [PartitionLag(group, "clicks.ga", 0, 5, 100_000, progress=moving)], {group: GroupDescription("Stable", 2)}
    )
    metrics.waiting(lambda: None)
    alerting.leading.set(1)
    canary.ok.set(1)
    taps.count(TAP, Blocks(), TapPlan(1, 0, 1, 1, through_ms=60_000))
    for other in (alerting, taps, canary):
        metrics.registry.register(other.registry)
    with make_server("127.0.0.1", 0, make_wsgi_app(metrics.registry), handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            target = f"127.0.0.1:{server.server_port}"
            with (
                metrics.showing(lambda: {"clicks": result()}),
                run_prometheus(tmp_path_factory.mktemp("prometheus"), target, RULES) as running,
            ):
                wait_for(lambda: running.values("up") == [1.0], what="a scrape")
                yield running
        finally:
            server.shutdown()
            thread.join(10)


def expressions(board: dict[str, Any]) -> list[str]:
    """The PromQL of a dashboard, of the pipeline `clicks`."""
    return [
        target["expr"].replace("$pipeline", "clicks").replace("$cluster", ".*").replace("$group", ".*")
        for panel in board["panels"]
        for target in panel["targets"]
        if "expr" in target
    ]


@pytest.mark.parametrize("name", ["overview", "pipeline", "groups"])
def test_every_chart_of_a_dashboard_has_data(prometheus: Prometheus, name: str) -> None:
    found = expressions(dashboards()[name])
    assert found
    for expression in found:  # a rate needs two scrapes
        wait_for(lambda: prometheus.values(expression), what=expression)  # noqa: B023


def test_the_stacked_hops_add_up_to_the_end_to_end_lag(prometheus: Prometheus) -> None:
    (stack,) = (panel for panel in dashboards()["pipeline"]["panels"] if panel["title"].startswith("Lag added"))
    parts = [
        value
        for target in stack["targets"]
        for value in prometheus.values(target["expr"].replace("$pipeline", "clicks"))
    ]
    assert sum(parts) == pytest.approx((LAGS["conn-ga.out"] - LAGS["col-service.in"]) / 1_000)


def test_the_rules_are_evaluated_and_open_what_they_should(prometheus: Prometheus) -> None:
    def states() -> dict[str, str]:
        found = {name: state for name, (state, _) in prometheus.rules().items()}
        return {name: state for name, state in found.items() if state not in ("", "inactive")}

    # the first evaluations run over fewer scrapes than a rule looks back
    expected = {
        "LaglossLoss": "firing",
        "LaglossHighLoss": "firing",
        "LaglossLossPossible": "pending",  # for a quarter of an hour
        "LaglossNothingClosed": "pending",  # the window is of 1970
        "LaglossLate": "pending",
        "LaglossTapBehind": "pending",  # it has read until 1970
    }
    wait_for(lambda: states() == expected, what="the alerts")
    assert {health for _, health in prometheus.rules().values()} == {"ok"}
    assert prometheus.values("pipeline:lagloss_loss:ratio") == [0.071]


@pytest.mark.parametrize("name", ["overview", "pipeline", "groups", "read-api"])
def test_the_files_are_built_and_follow_grafanas_schema(name: str) -> None:
    written = json.loads((FOLDER / f"{name}.json").read_text())
    assert written == dashboards()[name], "run `python -m deploy.grafana.build`"
    register_default_plugins()
    assert through_schema(written) == written
    wrong = copy.deepcopy(written)
    wrong["panels"][0]["gridPoz"] = wrong["panels"][0].pop("gridPos")
    assert through_schema(wrong) != wrong  # it does look


def through_schema(board: dict[str, Any]) -> Any:
    """The dashboard as Grafana's own types read and write it; a key that they do not have is gone. What they add are
    defaults."""
    back = json.loads(json.dumps(Dashboard.from_json(copy.deepcopy(board)), cls=JSONEncoder))
    return _only(back, board)


def _only(found: Any, wanted: Any) -> Any:
    """Without what is not in `wanted`."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        return {key: _only(value, wanted[key]) for key, value in found.items() if key in wanted}
    if isinstance(found, list) and isinstance(wanted, list):
        return [_only(*pair) for pair in zip(found, wanted, strict=False)]
    return found


def test_the_read_api_dashboard_asks_for_fields_that_windows_have() -> None:
    window = document(clicks(), 60)
    columns = [
        column["selector"]
        for panel in dashboards()["read-api"]["panels"]
        for target in panel["targets"]
        for column in target["columns"]
    ]
    for selector in columns:
        part: Any = window
        for key in re.split(r"\.", selector):
            assert key in part, selector
            part = part[key]
