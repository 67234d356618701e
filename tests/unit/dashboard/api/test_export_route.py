"""The route of exports: each format with its headers, without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from dashboard.api.app import create_api
from dashboard.queries.services import Services
from lagloss_server.base.errors import IdsHidden
from lagloss_server.base.settings import Settings
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.export import WindowExport
from lagloss_server.store.store import Store
from tests.unit.lagloss_server.queries.test_named_messages import START_S, odd_message

PATH = f"/pipelines/faulty/windows/{rfc3339(START_S + 30)}/export"


@pytest.fixture
def api() -> TestClient:
    return TestClient(create_api(Services(Store("postgresql://nowhere/none"), Settings())))


def test_each_format_is_sent_as_a_file(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def read(_: Services, *what: Any) -> WindowExport:
        asked.append(what)
        messages = (odd_message() for _ in range(2_500))
        return WindowExport(what[0], what[1], what[2], "log", messages, is_truncated=False, sample=1.0)

    monkeypatch.setattr("dashboard.api.windows.read_export", read)
    for name, media_type in (("csv", "text/csv"), ("json", "application/json"), ("parquet", "application/vnd")):
        answer = api.get(PATH, params={"what": "late", "format": name})
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(media_type)
        named = f'attachment; filename="faulty-2026-05-28T202700Z-late.{name}"'
        assert answer.headers["content-disposition"] == named
        if name == "csv":
            assert answer.text.count("\r\n") == 2_501
        if name == "json":
            assert len(json.loads(answer.text)["messages"]) == 2_500
    assert asked == [("faulty", START_S, "late")] * 3


def test_hidden_ids_are_not_exported(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any) -> WindowExport:
        raise IdsHidden(name="rob", pipeline="faulty")

    monkeypatch.setattr("dashboard.api.windows.read_export", read)
    assert api.get(PATH).status_code == 403
    assert api.get(PATH, params={"what": "odd"}).status_code == 422
