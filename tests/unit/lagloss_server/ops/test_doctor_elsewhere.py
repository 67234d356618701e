"""The doctor beside services that run by themselves, each in a container: nothing of it is what `up` would need."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic

from lagloss_server.base.instances import write_endpoints
from lagloss_server.base.settings import Settings
from lagloss_server.ops import doctor, jars, machine
from lagloss_server.ops.doctor import Check, check_jars, check_services, check_space, exit_code

NOWHERE = "http://127.0.0.1:9"
SERVICES = ("aggregator", "alerting", "taps", "collector", "canary")


@pytest.fixture(autouse=True)
def _no_up_of_this_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))


@contextmanager
def answering(status: int) -> Iterator[str]:
    """A service whose /healthz answers so; yields its URL."""

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path.startswith("/healthz") else 404)
            self.end_headers()
            self.wfile.write(b"waiting for kafka")

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Health)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def in_a_container(data_dir: Path, url: str, **more: Any) -> Settings:
    """The settings of a composed service: each address is given, the dashboard's as browsers reach it."""
    urls: dict[str, Any] = {f"{name}_url": url for name in SERVICES}
    return Settings(data_dir=data_dir, kafka_bootstrap="kafka-1:9092", **(urls | {"dashboard_url": NOWHERE} | more))


def test_the_dashboard_is_asked_where_services_reach_it_and_not_where_browsers_do(tmp_path: Path) -> None:
    with answering(200) as url:
        checks = check_services(in_a_container(tmp_path, url, dashboard_health_url=url))
    assert [check.verdict for check in checks] == ["ok"] * 6
    assert exit_code(checks) == 0


def test_an_address_for_browsers_alone_that_leads_nowhere_from_here_is_no_failure(tmp_path: Path) -> None:
    with answering(200) as url:
        checks = check_services(in_a_container(tmp_path, url))
        (dashboard,) = [check for check in checks if check.verdict != "ok"]
        assert (dashboard.name, dashboard.verdict) == ("dashboard", "warn")
        assert "LAGLOSS_DASHBOARD_HEALTH_URL" in dashboard.what_to_do
        assert exit_code(checks) == 0
        answered = check_services(in_a_container(tmp_path, url, dashboard_url=f"{url}/"))
    assert {check.verdict for check in answered} == {"ok"}


def test_a_dashboard_that_is_not_well_fails_and_so_does_that_of_a_running_up(tmp_path: Path) -> None:
    with answering(503) as url:
        for settings in (
            in_a_container(tmp_path, url, dashboard_health_url=url),
            in_a_container(tmp_path, url, dashboard_url="", dashboard_health_url=NOWHERE),
        ):
            checks = check_services(settings)
            assert [check.verdict for check in checks] == ["fail"] * 6
    write_endpoints(tmp_path, {"dashboard": NOWHERE})
    assert (
        check_services(Settings(data_dir=tmp_path, dashboard_url=NOWHERE, alerting_url=NOWHERE))[-1].verdict == "fail"
    )


def test_a_log_file_is_named_where_there_is_one(tmp_path: Path) -> None:
    with answering(503) as url:
        settings = in_a_container(tmp_path, url)
        assert {check.what_to_do for check in check_services(settings)[:4]} == {"see its log"}
        (tmp_path / "logs").mkdir()
        (tmp_path / "logs" / "taps.log").touch()
        found = {check.name: check.what_to_do for check in check_services(settings)[:4]}
    assert found["taps"] == f"see its log, {tmp_path}/logs/taps.log"
    assert found["alerting"] == "see its log"


def test_memory_for_all_of_up_is_asked_for_only_where_up_runs_or_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "memory_mb", lambda: 1_000)
    monkeypatch.setattr(jars, "spark_home", lambda: tmp_path)

    def memory(settings: Settings) -> Check:
        return check_space(settings)[0]

    elsewhere = in_a_container(tmp_path, NOWHERE)
    assert memory(elsewhere) == Check("memory", "ok", "1000 MB")
    assert memory(Settings(data_dir=tmp_path)).verdict == "fail"
    write_endpoints(tmp_path, {"aggregator": NOWHERE})
    assert memory(elsewhere).verdict == "fail"


def test_the_brokers_jars_are_needed_only_where_a_broker_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAGLOSS_JARS_DIR", str(tmp_path / "jars"))
    monkeypatch.setattr(jars, "spark_home", lambda: tmp_path)
    monkeypatch.setattr(jars, "differs", lambda jar, root: jar.kind == "broker")

    def found(settings: Settings) -> Check:
        (check,) = check_jars(settings)
        return check

    elsewhere = in_a_container(tmp_path, NOWHERE)
    assert found(elsewhere) == Check(
        "jars", "ok", f"{len(jars.SPARK.locked())} jars in {tmp_path}/jars match jars.lock"
    )
    assert found(Settings(data_dir=tmp_path)).verdict == "fail"
    (tmp_path / "jars" / "broker").mkdir(parents=True)  # half-fetched
    assert found(elsewhere).verdict == "fail"
    monkeypatch.setattr(jars, "differs", lambda jar, root: jar.kind == "spark")
    assert found(elsewhere).verdict == "fail"


def test_no_advice_names_a_log_file_that_may_not_be_there() -> None:
    assert "logs/" not in doctor._judge_set_aside(["window a/b (boom)"]).what_to_do


def test_a_broker_that_is_too_busy_for_a_topic_is_a_finding_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy:
        def create_topics(self, topics: list[NewTopic]) -> dict[str, Future[None]]:
            return {topic.topic: Future() for topic in topics}

    monkeypatch.setattr(doctor, "TIMEOUT_S", 0.01)
    check = doctor._check_kafka_clock("127.0.0.1:9", Busy())  # type: ignore[arg-type]
    assert (check.name, check.verdict) == ("Kafka clock", "warn")
    assert "no response within" in check.finding
