"""Results pushed by OTLP, to a server that decodes them by OpenTelemetry's own messages."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from aggregator.results.metrics import RESULTS, PipelineResult
from aggregator.results.otlp import pushing
from tests.support.kafka_log import wait_for
from tests.support.window_documents import chain, document, window_of


class Receiver:
    """What came, by name and attributes; and with which headers."""

    def __init__(self) -> None:
        self.points: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        self.resources: set[str] = set()
        self.headers: list[dict[str, str]] = []

    def take(self, body: bytes) -> None:
        for of_resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            self.resources |= {item.value.string_value for item in of_resource.resource.attributes}
            for metric in (each for scope in of_resource.scope_metrics for each in scope.metrics):
                for point in metric.gauge.data_points:
                    labels = frozenset((item.key, item.value.string_value) for item in point.attributes)
                    self.points[metric.name, labels] = point.as_double or point.as_int


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    received = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.headers.append({name.lower(): value for name, value in self.headers.items()})
            received.take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            self.send_response(200 if self.path == "/v1/metrics" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20of-the-company")
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "1000")
        yield received
        server.shutdown()
        thread.join(10)


def test_what_prometheus_reads_is_pushed_and_a_revision_replaces_it(receiver: Receiver) -> None:
    lost = [3]

    def read() -> dict[str, PipelineResult]:
        window = document(chain(), 60, verdict="loss", lost={"mid": (lost[0], lost[0])}, lags_ms={"snk.out": 500.0})
        return {"chain": PipelineResult(window_of(window), {}, chain().spec.sla)}

    def value(name: str, **labels: str) -> float | None:
        return receiver.points.get((name, frozenset({"pipeline": "chain", **labels}.items())))

    with pushing(read):
        wait_for(lambda: value("lagloss_node_lost_messages", node="mid", bound="min") == 3, what="the first push")
        lost[0] = 1
        wait_for(lambda: value("lagloss_node_lost_messages", node="mid", bound="min") == 1, what="the revision")
    assert value("lagloss_window_verdict", verdict="loss") == 1
    assert value("lagloss_window_e2e_lag_seconds", percentile="p95") == 0.5
    wanted = {metric.name for metric in RESULTS for _ in metric.samples(read()["chain"])}
    assert {name for name, _ in receiver.points} == wanted
    assert "lagloss" in receiver.resources
    assert {headers["authorization"] for headers in receiver.headers} == {"Bearer of-the-company"}


def test_without_an_endpoint_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    before = threading.active_count()
    with pushing(dict):
        assert threading.active_count() == before
