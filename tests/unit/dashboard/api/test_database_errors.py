"""A value that PostgreSQL cannot hold is the fault of a client; only a database that does not answer is away."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import exc

from dashboard.api.app import create_api
from dashboard.pages.notices import Failed, attempt
from dashboard.queries.services import Services
from lagloss_server.base.settings import Settings
from lagloss_server.store.engine import AWAY
from lagloss_server.store.store import Store

CASES = [
    (exc.OperationalError, psycopg.OperationalError("no route to host"), 503),
    (exc.InterfaceError, psycopg.InterfaceError("the connection is closed"), 503),
    (exc.DataError, psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"), 422),
    (exc.ProgrammingError, psycopg.ProgrammingError("relation does not exist"), 500),
    (exc.IntegrityError, psycopg.IntegrityError("duplicate key"), 500),
]


@pytest.fixture
def api() -> TestClient:
    store = Store("postgresql://nowhere/none")
    return TestClient(create_api(Services(store, Settings())), raise_server_exceptions=False)


@pytest.mark.parametrize(("kind", "cause", "status"), CASES)
def test_only_a_database_that_is_away_is_503(
    api: TestClient, monkeypatch: pytest.MonkeyPatch, kind: Any, cause: psycopg.Error, status: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise kind("SELECT 1", {}, cause)

    monkeypatch.setattr(Store, "versions_of", fail)
    monkeypatch.setattr(Store, "pipeline", fail)
    answer = api.get("/pipelines/a%00b")
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    if status == 422:
        assert answer.json()["field"] == "pipeline"
    shown = attempt(fail)
    assert isinstance(shown, Failed)
    assert shown.detail.startswith("PostgreSQL did not respond") == (status == 503) == issubclass(kind, AWAY)


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/silences", {"matchers": ["pipeline=a"], "duration": "1h", "reason": None}, "reason"),
        ("/silences", {"matchers": ["pipeline=a"], "duration": "1h", "reason": "known", "author": None}, "author"),
        ("/silences", {"matchers": ["pipeline=a", None], "duration": "1h", "reason": "known"}, "matchers"),
        ("/incidents/0a1b2c3d-0000-4000-8000-000000000000/acknowledge", {"note": None}, "note"),
    ],
)
def test_texts_of_actions_are_refused_by_name(
    api: TestClient, path: str, body: dict[str, Any], field: str, text: str
) -> None:
    sent = json.dumps(body).replace("null", json.dumps(text))
    answer = api.post(path, content=sent, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text
