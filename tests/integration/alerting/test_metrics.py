"""What the alerter tells of itself, to whoever asks and to a real Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx2
import pytest

from lagloss_server.ops.processes import choose_port
from lagloss_server.store.schema.alerting import OutboxMessageRow
from lagloss_server.store.store import Store
from tests.fakes.prometheus import Prometheus, complaints, run_prometheus
from tests.support.alerting_world import alerter, close_windows, only_loss, rows, somebody
from tests.support.kafka_log import wait_for

SENT = 'lagloss_alerting_notifications_total{outcome="sent",receiver="webhook"}'
OPEN = 'lagloss_alerting_incidents_open{kind="loss",pipeline="chain",severity="critical"}'


@dataclass(frozen=True)
class Running:
    """An alerter that has opened one incident and told of it, and a Prometheus that scrapes it. `address`: host:port of
    the alerter's HTTP."""

    address: str
    prometheus: Prometheus

    def get(self, path: str) -> httpx2.Response:
        return httpx2.get(f"http://{self.address}{path}", trust_env=False)


@pytest.fixture(scope="module")
def running(module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    store, port = Store(module_database_url), str(choose_port("the alerter"))
    address = f"127.0.0.1:{port}"
    store.apply(only_loss())
    with (
        run_prometheus(tmp_path_factory.mktemp("prometheus"), address) as prometheus,  # its first scrape is after 5 s
        somebody() as receiver,
        alerter(module_database_url, receiver.url, LAGLOSS_ALERTING_PORT=port),
    ):
        close_windows(store, "ll")
        wait_for(lambda: [row.outcome for row in rows(store, OutboxMessageRow)] == ["sent"], what="the opening")
        yield Running(address, prometheus)
    store.close()


def test_it_tells_prometheus_how_it_does(running: Running) -> None:
    def metrics() -> list[str]:
        return running.get("/metrics").text.splitlines()

    wait_for(lambda: {f"{SENT} 1.0", f"{OPEN} 1.0"} <= set(metrics()), what="both to be counted")
    assert "lagloss_alerting_leading 1.0" in metrics()
    assert running.get("/healthz").status_code == 200


def test_promtool_has_no_complaint_about_its_metrics(running: Running) -> None:
    text = running.get("/metrics").text
    assert "lagloss_alerting_delivery_seconds_bucket" in text
    assert complaints(text) == ""
    assert complaints(text.replace("_total", "_sum")) != ""  # promtool does look


def test_a_real_prometheus_scrapes_it(running: Running) -> None:
    prometheus = running.prometheus
    wait_for(lambda: prometheus.values("up") == [1.0], what="a scrape")
    wait_for(lambda: prometheus.values(OPEN) == [1.0], what="the incident to be counted")
    wait_for(lambda: prometheus.values(SENT) == [1.0], what="the notification to be counted")
    assert prometheus.values("lagloss_alerting_leading") == [1.0]
    [age_s] = prometheus.values("time() - lagloss_alerting_evaluated_timestamp_seconds")
    assert 0 <= age_s < 60
