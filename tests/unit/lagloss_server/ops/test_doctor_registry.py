"""The doctor and the schema registry: a check if there is one."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from lagloss_server.base.settings import Settings
from lagloss_server.ops import doctor
from lagloss_server.ops.doctor import Check, check_schema_registry, show
from tests.support.registry_server import registry_server

URL = "LAGLOSS_SCHEMA_REGISTRY_URL"


def test_a_registry_that_answers_is_well_and_one_that_is_away_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(URL, raising=False)
    assert check_schema_registry(Settings()) == []
    monkeypatch.setattr(doctor, "ALL_CHECKS", (check_schema_registry,))
    with registry_server() as server:
        server.answers["/schemas/types"] = 200, ["JSON", "AVRO"]
        monkeypatch.setenv(URL, server.url)
        assert doctor.run(Settings()) == [Check("schema registry", "ok", f"{server.url}: JSON, AVRO")]
    (found,) = doctor.run(Settings())
    assert (found.name, found.verdict) == ("schema registry", "fail")
    assert "Cannot query the schema registry" in found.finding
    assert "Check LAGLOSS_SCHEMA_REGISTRY_URL" in found.what_to_do


def test_the_settings_of_the_registry_are_shown_without_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL, "http://registry:8081")
    monkeypatch.setenv("LAGLOSS_SCHEMA_REGISTRY_TOKEN", "geheim")
    out = io.StringIO()
    show([], Settings(), Console(file=out))
    assert "schema_registry_url = http://registry:8081" in out.getvalue()
    assert "schema_registry_token = ***" in out.getvalue()
    assert "geheim" not in out.getvalue()
