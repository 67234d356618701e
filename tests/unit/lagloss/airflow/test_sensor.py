"""The sensor, with the least of Airflow that it needs: when a job may begin, and when waiting is of no use."""

from __future__ import annotations

import asyncio
import io
import sys
import urllib.error
from collections.abc import Iterator
from datetime import UTC, datetime
from email.message import Message
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from lagloss.airflow.sender import Collector

NOON = datetime(2026, 11, 26, 12, tzinfo=UTC)
RUN = SimpleNamespace(data_interval_start=NOON, data_interval_end=NOON, logical_date=NOON, start_date=NOON)


class Fail(Exception):
    """Stands for AirflowFailException."""


class Base:
    """Stands for BaseSensorOperator and BaseTrigger."""

    log = SimpleNamespace(info=lambda *_: None)
    poke_interval, timeout = 0.0, 60.0

    def __init__(self, **_: Any) -> None:
        self.deferred: list[Any] = []

    def execute(self, context: Any) -> Any:
        return self.poke(context)  # type: ignore[attr-defined]

    def defer(self, **given: Any) -> None:
        self.deferred.append(given)


@pytest.fixture
def sensor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module `lagloss.airflow.sensor`."""
    modules: dict[str, dict[str, Any]] = {
        "airflow": {},
        "airflow.sdk": {"BaseSensorOperator": Base},
        "airflow.sdk.exceptions": {"AirflowFailException": Fail},
        "airflow.triggers": {},
        "airflow.triggers.base": {"BaseTrigger": Base, "TriggerEvent": lambda payload: payload},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("LAGLOSS_COLLECTOR_URL", "http://collector")
    monkeypatch.setenv("LAGLOSS_COLLECTOR_TOKEN", "one,two")
    yield import_module("lagloss.airflow.sensor")
    monkeypatch.delitem(sys.modules, "lagloss.airflow.sensor")


def answering(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> list[tuple[str, str]]:
    """Let the collector answer with these, an exception by raising it; what it was asked."""
    asked: list[tuple[str, str]] = []
    left = list(answers)

    def ask(_self: Collector, path: str, token: str, body: bytes | None = None) -> dict[str, Any]:
        asked.append((path, token))
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {"from": "11", "to": "12", "state": answer, "why": "3 of 10 messages lost"}

    monkeypatch.setattr(Collector, "ask", ask)
    return asked


def refused(code: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://collector", code, "no", Message(), io.BytesIO(b"detail"))


def test_a_job_begins_once_its_hour_is_whole(sensor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(monkeypatch, "waiting", "lossy", "whole")
    waits = sensor.WholeSpanSensor(pipeline="scores", node="import", task_id="wait")
    assert [waits.execute({"dag_run": RUN}) for _ in range(3)] == [False, False, True]
    span = "from=2026-11-26T11%3A00%3A00%2B00%3A00&to=2026-11-26T12%3A00%3A00%2B00%3A00"
    assert asked[0] == (f"/v1/pipelines/scores/whole?{span}&node=import", "one")


def test_a_lossy_hour_is_run_or_refused_where_the_job_says_so(sensor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, "lossy", "lossy")
    assert sensor.WholeSpanSensor(pipeline="scores", when_lossy="run").poke({"dag_run": RUN})
    with pytest.raises(Fail, match="3 of 10 messages lost"):
        sensor.WholeSpanSensor(pipeline="scores", when_lossy="fail").poke({"dag_run": RUN})


def test_another_token_is_tried_and_an_outage_is_waited_out(sensor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(monkeypatch, refused(403), "whole", refused(503), OSError("away"), refused(404))
    waits = sensor.WholeSpanSensor(pipeline="scores")
    assert waits.poke({"dag_run": RUN})
    assert [token for _, token in asked] == ["one", "two"]
    assert not waits.poke({"dag_run": RUN})
    assert not waits.poke({"dag_run": RUN})
    with pytest.raises(Fail, match="detail"):
        waits.poke({"dag_run": RUN})
    answering(monkeypatch, refused(403), refused(401))
    with pytest.raises(Fail, match="rejects every token"):
        waits.poke({"dag_run": RUN})


def test_a_deferred_sensor_hands_its_question_to_the_trigger(sensor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, "waiting", "waiting", "whole")
    waits = sensor.WholeSpanSensor(pipeline="scores", deferrable=True)
    waits.execute({"dag_run": RUN})
    (given,) = waits.deferred
    path, fields = given["trigger"].serialize()
    assert path == "lagloss.airflow.sensor.WholeSpanTrigger"
    again = sensor.WholeSpanTrigger(**fields)

    async def first() -> Any:
        return await anext(again.run())

    event = asyncio.run(first())
    assert event["state"] == "whole"
    getattr(waits, given["method_name"])({}, event)
