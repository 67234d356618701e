"""Every route of the read API and of the collector declares its responses, with schemas that hold all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import jsonschema_rs
import pytest
from fastapi import FastAPI

from collector.app import create_app
from dashboard.api.app import create_api
from dashboard.queries.services import Services
from lagloss_server.base.settings import Settings
from lagloss_server.store.store import Store

PROBLEM: Final = "application/problem+json"
APPS: Final = {
    "dashboard": lambda: create_api(Services(Store("postgresql://nowhere/none"), Settings())),
    "collector": lambda: create_app("127.0.0.1:1"),
}
UNTYPED: Final = {("collector", f"GET /v1/schemas/{name}.json") for name in ("defaults", "pipeline")}
"""JSON that is declared as an object of any fields."""


@pytest.fixture(params=APPS, scope="module")
def served(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    app: FastAPI = APPS[request.param]()
    return request.param, app.openapi()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def test_each_response_has_content_with_a_schema(served: tuple[str, dict[str, Any]]) -> None:
    _, document = served
    for name, operation in operations(document):
        for status, response in operation["responses"].items():
            content = response.get("content", {})
            assert bool(content) == (status != "204"), (name, status)
            assert all(part.get("schema") for part in content.values()), (name, status)


def test_json_that_is_not_an_error_is_of_a_declared_structure(served: tuple[str, dict[str, Any]]) -> None:
    app, document = served
    untyped = set()
    for name, operation in operations(document):
        for status, response in operation["responses"].items():
            schema = response.get("content", {}).get("application/json", {}).get("schema")
            if schema is not None and not any("$ref" in part for part in alternatives(schema)):
                untyped.add((app, name))
            assert status.startswith("2") or PROBLEM in response["content"] or "/healthz" in name, (name, status)
    assert untyped == {route for route in UNTYPED if route[0] == app}


def alternatives(schema: dict[str, Any]) -> list[dict[str, Any]]:
    parts = schema.get("anyOf", [schema])
    return [part.get("items", part) for part in parts]


def test_each_operation_that_takes_parameters_declares_what_is_wrong_with_them(
    served: tuple[str, dict[str, Any]],
) -> None:
    _, document = served
    for name, operation in operations(document):
        if operation.get("parameters"):
            assert PROBLEM in operation["responses"]["422"]["content"], name


def test_structures_have_no_fields_but_those_that_are_declared(served: tuple[str, dict[str, Any]]) -> None:
    _, document = served
    schemas = document["components"]["schemas"]
    assert "ProblemDocument" in schemas
    for name, schema in schemas.items():
        if "properties" in schema:
            assert schema["additionalProperties"] is False, name


def test_every_reference_leads_somewhere(served: tuple[str, dict[str, Any]]) -> None:
    _, document = served
    components = document["components"]
    for name in components["schemas"]:
        jsonschema_rs.validator_for({"$ref": f"#/components/schemas/{name}", "components": components})
    for _, operation in operations(document):
        for response in operation["responses"].values():
            for part in response.get("content", {}).values():
                jsonschema_rs.validator_for({**part["schema"], "components": components})
