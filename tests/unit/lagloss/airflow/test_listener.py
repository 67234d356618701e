"""The listener as Airflow calls it, by pluggy: what it reports, and that nothing of it ever harms a task."""

from __future__ import annotations

import logging
import socket
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pluggy
import pytest

from collector.task_runs import read_reports
from lagloss.airflow import sender as sending
from lagloss.airflow.facts import span_of
from lagloss.airflow.listener import RunListener
from lagloss.airflow.sender import Collector, ReportSender
from lagloss_server.model.jobs import JobSpec
from lagloss_server.model.time_range import TimeRange
from lagloss_server.runs.run_store import RunReport
from tests.fakes.http_receiver import HttpReceiver, Reply, Request
from tests.support.kafka_log import wait_for

NOON = datetime(2026, 11, 26, 12, tzinfo=UTC)
spec = pluggy.HookspecMarker("airflow")


class Hooks:
    """Those of Airflow 3's that are of interest."""

    @spec
    def on_task_instance_running(self, previous_state: Any, task_instance: Any) -> None: ...

    @spec
    def on_task_instance_success(self, previous_state: Any, task_instance: Any) -> None: ...

    @spec
    def on_task_instance_failed(self, previous_state: Any, task_instance: Any, error: Any) -> None: ...

    @spec
    def on_dag_run_failed(self, dag_run: Any, msg: str) -> None: ...

    @spec
    def before_stopping(self, component: Any) -> None: ...


class FakeCollector(HttpReceiver):
    """Accepts reports, unless `statuses` has another answer for their token."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses: dict[str, int] = {}
        self.numbers: defaultdict[str, list[int]] = defaultdict(list)
        """Of the reports that were accepted, by their token, as often as they came."""

    def answer(self, request: Request) -> Reply:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        status = self.statuses.get(token, 202)
        if status == 202:
            self.numbers[token] += [report.get("n") for report in request.json()["reports"]]
        return Reply(status, b'{"accepted": 1, "ignored": 0}')

    @property
    def reports(self) -> list[RunReport]:
        return [report for request in self.requests for report in read_reports(request.body)]


@pytest.fixture
def collector() -> Iterator[FakeCollector]:
    with FakeCollector() as fake:
        yield fake


def manager_of(listener: RunListener) -> pluggy.PluginManager:
    manager = pluggy.PluginManager("airflow")
    manager.add_hookspecs(Hooks)
    manager.register(listener)
    return manager


def dag_run(**more: Any) -> SimpleNamespace:
    of: dict[str, Any] = {"dag_id": "scores", "run_id": "r-1", "logical_date": NOON, "run_after": NOON}
    times = {"start_date": NOON, "end_date": None, "data_interval_start": NOON, "data_interval_end": NOON}
    return SimpleNamespace(**{**of, **times, **more})


def task_instance(**more: Any) -> SimpleNamespace:
    context = {"dag_run": dag_run()}
    of: dict[str, Any] = {"task_id": "publish", "try_number": 2, "map_index": -1, "start_date": NOON, "end_date": None}
    return SimpleNamespace(get_template_context=lambda: context, **{**of, **more})


def test_tries_and_runs_are_reported_as_the_collector_reads_them(collector: FakeCollector) -> None:
    hook = manager_of(RunListener(ReportSender(Collector(collector.url, ["lagloss_a_b"])))).hook
    hook.on_task_instance_running(previous_state="queued", task_instance=task_instance())
    ended = task_instance(end_date=NOON + timedelta(seconds=3))
    hook.on_task_instance_failed(previous_state="running", task_instance=ended, error="boom")
    hook.on_dag_run_failed(dag_run=dag_run(end_date=NOON + timedelta(seconds=9)), msg="task_failure")
    hook.before_stopping(component=None)
    running, failed, run = collector.reports
    assert running.task_event is not None
    assert failed.task_event is not None
    assert run.run is not None
    assert (running.task, running.try_number, running.task_event.state) == ("publish", 2, "running")
    noon_ms = int(NOON.timestamp()) * 1_000
    assert (failed.task_event.state, failed.task_event.ended_ms) == ("failed", noon_ms + 3_000)
    assert (run.run.state, run.run.ended_ms, run.due_ms) == ("failed", noon_ms + 9_000, noon_ms)
    assert {request.headers["authorization"] for request in collector.requests} == {"Bearer lagloss_a_b"}


def test_a_task_ends_within_bounds_where_the_collector_is_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sending, "MAX_WAITING", 10)
    with socket.socket() as bound, caplog.at_level(logging.WARNING, "lagloss.airflow"):
        bound.bind(("127.0.0.1", 0))  # nobody listens there
        sender = ReportSender(Collector(f"http://127.0.0.1:{bound.getsockname()[1]}"))
        hook = manager_of(RunListener(sender)).hook
        began = time.monotonic()
        for _ in range(50):
            hook.on_task_instance_running(previous_state="queued", task_instance=task_instance())
        assert time.monotonic() - began < 1
        assert sender.dropped > 0
        of_scheduler = task_instance(dag_run=dag_run())  # of a worker that was killed
        hook.on_task_instance_failed(previous_state="running", task_instance=of_scheduler, error="heartbeat timeout")
        assert time.monotonic() - began < 1
        hook.on_task_instance_success(previous_state="running", task_instance=task_instance())
        assert time.monotonic() - began < sending.FLUSH_S + sending.TIMEOUT_S + 1
    assert len([record for record in caplog.records if "cannot send reports" in record.message]) == 1


def test_what_the_collector_refuses_is_dropped_and_what_it_cannot_take_now_is_sent_again(
    collector: FakeCollector,
) -> None:
    sender = ReportSender(Collector(collector.url))
    collector.replies += [Reply(422, b"{}"), Reply(503, b"{}")]
    sender.put({"reports": "odd"})
    assert sender.flush()
    assert sender.dropped == 1
    sender.put({"fine": True})
    assert sender.flush()
    assert len(collector.requests) == 3
    sender._pid = -1  # as after a fork
    sender.put({"fine": True})
    assert sender.flush()
    assert len(collector.requests) == 4


@pytest.mark.parametrize("status", [401, 403, 413, 422])
def test_a_token_that_is_refused_takes_no_reports_from_the_others(
    collector: FakeCollector, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    collector.statuses["revoked"] = status
    sender = ReportSender(Collector(collector.url, ["revoked", "good"]))
    for number in range(3):
        sender.put({"n": number})
        assert sender.flush()
    assert (collector.numbers["good"], sender.dropped) == ([0, 1, 2], 0)
    assert [record.message.partition("with ")[2][:14] for record in caplog.records] == ["token 1 of 2: "]
    assert "revoked" not in caplog.text
    collector.statuses["good"] = 401
    sender.put({"n": 3})
    assert sender.flush()
    assert sender.dropped == 1
    assert "token 2 of 2" in caplog.text


@pytest.mark.parametrize("status", [429, 503])
def test_a_pipeline_that_is_busy_holds_up_no_other_and_gets_its_reports_later_in_order(
    collector: FakeCollector, status: int
) -> None:
    collector.statuses["busy"] = status
    sender = ReportSender(Collector(collector.url, ["busy", "good"]))
    for number in range(3):
        sender.put({"n": number})
        assert not sender.flush(0.3)
        assert collector.numbers["good"] == list(range(number + 1))
    del collector.statuses["busy"]
    assert sender.flush()
    assert collector.numbers == {"good": [0, 1, 2], "busy": [0, 1, 2]}
    assert sender.dropped == 0


def test_a_pipeline_that_is_busy_for_long_loses_the_oldest_reports_and_no_other_does(
    collector: FakeCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "MAX_WAITING", 10)
    collector.statuses["busy"] = 503
    sender = ReportSender(Collector(collector.url, ["busy", "good"]))
    for number in range(25):
        sender.put({"n": number})
        wait_for(lambda: number in collector.numbers["good"], what="the report")  # noqa: B023
    assert sender.dropped == 15
    del collector.statuses["busy"]
    assert sender.flush()
    assert collector.numbers == {"good": list(range(25)), "busy": list(range(15, 25))}
    assert sender.dropped == 15


def test_a_listener_that_fails_says_so_once_and_raises_nothing(
    collector: FakeCollector, caplog: pytest.LogCaptureFixture
) -> None:
    hook = manager_of(RunListener(ReportSender(Collector(collector.url)))).hook
    for _ in range(3):
        hook.on_dag_run_failed(dag_run=object(), msg="")
    assert len([record for record in caplog.records if record.exc_info]) <= 1
    assert collector.requests == []


def test_without_a_collector_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAGLOSS_COLLECTOR_URL", raising=False)
    hook = manager_of(RunListener()).hook
    hook.on_task_instance_success(previous_state="running", task_instance=task_instance())


@pytest.mark.parametrize("minutes", [0, 5, 59])
def test_the_sensor_waits_for_the_hour_that_the_job_is_about(minutes: int) -> None:
    at = NOON + timedelta(minutes=minutes)
    job = JobSpec(dag="scores")
    for start in (at, at - timedelta(seconds=40), at - timedelta(minutes=1), at - timedelta(hours=1)):
        run = dag_run(data_interval_start=start, data_interval_end=at)
        found = TimeRange(*(int(moment.timestamp()) for moment in span_of(run, timedelta(hours=1))))
        due_ms, start_ms = (1_000 * int(moment.timestamp()) for moment in (at, start))
        assert found == job.span_of(due_ms, (start_ms, due_ms))
