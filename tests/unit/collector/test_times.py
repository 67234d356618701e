"""A time is read, or refused, in the same way wherever it comes in over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

from collector.cloud_events import BATCHED, SINGLE, read_events
from collector.models import as_batch, read_batch
from collector.openlineage import read_event
from collector.spans.answer import Rejected
from collector.spans.named import beacons_of
from collector.spans.otlp import JSON, open_request
from collector.task_runs import read_reports
from lagloss.wire.times import NOT_A_TIME, read_time
from lagloss_server.net.problem_details import Problem
from tests.support.odd_times import TIMES

REFUSED = f"422 {NOT_A_TIME}"
DAG_RUN = {"dag": "d", "run_id": "r"}


def dumped(**members: Any) -> bytes:
    return json.dumps(members).encode()


def beacon(value: Any) -> float:
    said = {"checkpoint": "in", "message_id": "m", "event_time": value, "observed_at": value}
    (seen,) = as_batch(read_batch(dumped(pipeline="p", node="n", beacons=[said])), None).seen
    assert seen.event_ms == seen.observed_ms
    return seen.event_ms


def cloud_event(value: Any) -> float:
    event = {"specversion": "1.0", "id": "1", "type": "io.lagloss.beacon.in", "source": "/pipelines/p/nodes/n"}
    said = event | {"subject": "m", "eventtime": value, "time": value}
    (seen,) = as_batch(read_events(dumped(**said), SINGLE)[0], None).seen
    assert as_batch(read_events(json.dumps([said]).encode(), BATCHED)[0], None).seen[0] == seen
    assert seen.event_ms == seen.observed_ms
    return seen.event_ms


def span(value: Any) -> float:
    kind = "stringValue" if isinstance(value, str) else "intValue" if isinstance(value, int) else "doubleValue"
    said = {"messaging.operation.type": "process", "messaging.message.id": "m"}
    pairs = [{"key": name, "value": {"stringValue": text}} for name, text in said.items()]
    time = {"key": "lagloss.event_time", "value": {kind: value}}
    names = [{"key": name, "value": {"stringValue": "p"}} for name in ("lagloss.pipeline", "service.name")]
    scope = {"spans": [{"name": "s", "attributes": [*pairs, time]}]}
    rejected = Rejected()
    body = dumped(resourceSpans=[{"resource": {"attributes": names}, "scopeSpans": [scope]}])
    nodes = beacons_of(open_request(body, JSON).read(), rejected)
    if rejected.spans:
        raise Problem(422, "", rejected.first.removeprefix("span 's': lagloss.event_time: "))
    return nodes[0].seen[0].event_ms


def task_run(value: Any) -> float:
    run = {"state": "running", "at": value, "started_at": value}
    (report,) = read_reports(dumped(reports=[DAG_RUN | {"due_at": value, "run": run}]))
    assert report.run is not None
    assert report.due_ms == report.run.at_ms == report.run.started_ms
    return report.due_ms


def lineage(value: Any) -> float:
    facet = {"dag": {"dag_id": "d"}, "dagRun": {"run_id": "r", "data_interval_end": value}, "task": {"task_id": "t"}}
    event = {"eventType": "START", "eventTime": value, "run": {"facets": {"airflow": facet}}}
    (report,) = read_event(dumped(**event))
    assert report.task_event is not None
    assert report.task_event.at_ms == report.due_ms
    return report.due_ms


WAYS: list[Callable[[Any], float]] = [beacon, cloud_event, span, task_run, lineage]


def read_by(way: Callable[[Any], float], value: Any) -> int | str:
    try:
        return int(way(value))
    except Problem as problem:
        return f"{problem.status} {problem}"


@pytest.mark.parametrize("way", WAYS)
@given(value=TIMES)
def test_a_time_is_the_same_at_every_way_in(way: Callable[[Any], float], value: Any) -> None:
    try:
        expected: int | str = int(read_time(value))
    except ValueError:
        expected = REFUSED
    assert read_by(way, value) == expected


@pytest.mark.parametrize("way", [beacon, cloud_event, task_run, lineage])
@pytest.mark.parametrize("value", [True, [], {}, 1e300, float("nan"), 10**30, "", "soon", "1" * 5_000])
def test_what_is_no_time_is_refused_with_the_same_words(way: Callable[[Any], float], value: Any) -> None:
    assert read_by(way, value) == REFUSED


def test_the_field_that_holds_no_time_is_named() -> None:
    for way, field in ((beacon, "event_time"), (cloud_event, "eventtime"), (task_run, "due_at")):
        with pytest.raises(Problem) as problem:
            way("soon")
        assert (problem.value.document.position, problem.value.document.field) == (0, field)
